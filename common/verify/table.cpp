#include "common/verify/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

namespace ref5d {
namespace {

// Code points of a UTF-8 string: every byte that does not continue one.
std::size_t width_of(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

}  // namespace

std::string format_table(const std::vector<std::vector<std::string>>& rows, const std::string& align) {
  std::vector<std::size_t> widths(align.size(), 0);
  for (const auto& row : rows) {
    for (std::size_t c = 0; c < row.size() && c < widths.size(); ++c) widths[c] = std::max(widths[c], width_of(row[c]));
  }
  std::string text;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    std::string line;
    for (std::size_t c = 0; c < rows[r].size() && c < widths.size(); ++c) {
      const std::string blanks(widths[c] - width_of(rows[r][c]), ' ');
      if (c > 0) line += "  ";
      line += align[c] == 'r' ? blanks + rows[r][c] : rows[r][c] + blanks;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
    if (r == 0) {
      std::size_t total = 0;
      for (std::size_t w : widths) total += w + 2;
      text += std::string(total < 2 ? 0 : total - 2, '-') + "\n";
    }
  }
  return text;
}

std::string scientific(double x) { return x == 0 ? "0" : fmt::format("{:.2e}", x); }

std::string human_bytes(std::int64_t bytes) {
  constexpr std::array kUnits{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (std::abs(value) >= 1023.995 && unit + 1 < kUnits.size() && std::abs(bytes) >= 1024) value /= 1024, ++unit;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.2f} {}", value, kUnits[unit]);
}

std::string grouped_digits(std::int64_t n) {
  const std::string digits = fmt::format("{}", n);
  const std::size_t first = n < 0 ? 1 : 0;
  std::string text;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > first && (digits.size() - i) % 3 == 0) text += ' ';
    text += digits[i];
  }
  return text;
}

}  // namespace ref5d
