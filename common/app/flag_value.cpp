#include "common/app/flag_value.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>

#include "common/device/error.h"

namespace ref5d {
namespace {

constexpr std::size_t kMaxShown = 80;

[[noreturn]] void fail(std::string_view flag, std::string_view text, const std::string& wanted) {
  throw InputError(fmt::format("{} {}: must be {}", flag, text.empty() ? "\"\"" : printable(text), wanted));
}

// What is wanted, by what is wrong: the end that was passed, or else the lower one.
std::string describe(const IntegerRange& range, bool above) {
  if (above) return fmt::format("a whole number of at most {}", range.max);
  return range.min == IntegerRange{}.min ? "a whole number" : fmt::format("a whole number of at least {}", range.min);
}

std::string describe(const NumberRange& range) {
  std::string text = "a number";
  const bool below = std::isfinite(range.min), above = std::isfinite(range.max);
  if (below) text += fmt::format(" {} {}", range.open_min ? "above" : "of at least", range.min);
  if (below && above) text += " and";
  if (above) text += fmt::format(" {} {}", range.open_max ? "below" : "at most", range.max);
  return text;
}

// Edits from a to b: insert, delete, replace, swap neighbours (optimal string alignment).
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (std::size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    for (std::size_t j = 1; j <= b.size(); ++j) {
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

}  // namespace

std::int64_t parse_integer(std::string_view flag, std::string_view text, const IntegerRange& range) {
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  const bool whole = result.ptr == end && result.ec != std::errc::invalid_argument;
  const bool overflow = result.ec == std::errc::result_out_of_range;
  const bool above = whole && (overflow ? !text.starts_with('-') : value > range.max);
  if (!whole || overflow || above || value < range.min) fail(flag, text, describe(range, above));
  return value;
}

double parse_number(std::string_view flag, std::string_view text, const NumberRange& range) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  const bool number = result.ec == std::errc() && result.ptr == end && std::isfinite(value);
  const bool below = value < range.min || (range.open_min && value == range.min);
  const bool above = value > range.max || (range.open_max && value == range.max);
  if (!number || below || above) fail(flag, text, describe(range));
  return value;
}

std::string parse_choice(std::string_view flag, std::string_view text, std::span<const std::string> choices) {
  if (std::find(choices.begin(), choices.end(), text) != choices.end()) return std::string(text);
  const std::string meant = nearest(text, choices);
  const std::string hint = meant.empty() || choices.size() == 1 ? "" : fmt::format("; did you mean {}?", meant);
  const std::string wanted = choices.size() == 1 ? choices[0] : fmt::format("one of {}", join(choices, ", "));
  fail(flag, text, wanted + hint);
}

std::string nearest(std::string_view text, std::span<const std::string> candidates) {
  if (text.size() < 3 || text.size() > kMaxShown) return "";
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(1, std::min<std::size_t>(3, text.size() / 3)) + 1;
  for (const std::string& candidate : candidates) {
    const std::size_t distance = edit_distance(text, candidate);
    if (distance < best_distance) best = candidate, best_distance = distance;
  }
  if (!best.empty()) return best;
  const auto begins = [&](const std::string& candidate) { return candidate.starts_with(text); };
  if (std::count_if(candidates.begin(), candidates.end(), begins) != 1) return "";
  return *std::find_if(candidates.begin(), candidates.end(), begins);
}

std::string join(std::span<const std::string> texts, std::string_view separator) {
  std::string all;
  for (const std::string& text : texts) {
    if (!all.empty()) all += separator;
    all += text;
  }
  return all;
}

std::string printable(std::string_view text) {
  std::string shown(text.substr(0, kMaxShown));
  for (char& c : shown) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = '?';
  }
  return text.size() > kMaxShown ? shown + "..." : shown;
}

}  // namespace ref5d
