#include "common/verify/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "common/verify/table.h"

namespace ref5d {
namespace {

const char* verdict_word(bool pass) { return pass ? "ok" : "FAIL"; }

std::string group_of(const std::string& name) { return name.substr(0, name.find('/')); }

// How close a check is to its tolerance: below 1 it holds. Failures come out above every check that holds.
double strain(const Check& c) {
  if (!std::isfinite(c.value) || !std::isfinite(c.tolerance)) return std::numeric_limits<double>::infinity();
  const double ratio = c.value <= 0 ? 0 : c.tolerance <= 0 ? std::numeric_limits<double>::max() : c.value / c.tolerance;
  return c.pass ? std::min(ratio, 1.0) : std::max(ratio, 1.0 + 1e-9);
}

struct Group {
  std::string name;
  std::int64_t checks = 0;
  std::int64_t failed = 0;
  const Check* worst = nullptr;
};

std::vector<Group> group_checks(std::span<const Check> checks) {
  std::vector<Group> groups;
  for (const Check& c : checks) {
    const std::string name = group_of(c.name);
    auto group = std::find_if(groups.begin(), groups.end(), [&](const Group& g) { return g.name == name; });
    if (group == groups.end()) group = groups.insert(groups.end(), {name, 0, 0, nullptr});
    ++group->checks;
    if (!c.pass) ++group->failed;
    if (group->worst == nullptr || strain(c) > strain(*group->worst)) group->worst = &c;
  }
  return groups;
}

// Whole numbers exactly, others with six digits.
std::string quantity(double x, const std::string& unit) {
  std::string text;
  if (std::isfinite(x) && x == std::floor(x) && std::abs(x) < 1e15) {
    text = grouped_digits(static_cast<std::int64_t>(x));
  } else {
    text = fmt::format("{:.6g}", x);
  }
  return unit.empty() ? text : text + " " + unit;
}

}  // namespace

Check make_check(std::string name, std::string measure, double value, double tolerance, double max_abs) {
  const bool pass = std::isfinite(value) && std::isfinite(tolerance) && value <= tolerance;
  return {std::move(name), std::move(measure), value, tolerance, pass, max_abs};
}

Claim make_claim(std::string name, double expected, double measured, double tolerance, std::string unit, std::string note) {
  const bool finite = std::isfinite(expected) && std::isfinite(measured) && std::isfinite(tolerance);
  const bool pass = finite && (expected == measured || std::abs(measured - expected) <= tolerance * std::abs(expected));
  return {std::move(name), expected, measured, tolerance, pass, std::move(unit), std::move(note)};
}

void Verdict::add(std::string name, std::string measure, double value, double tolerance) {
  checks_.push_back(make_check(std::move(name), std::move(measure), value, tolerance));
}

void Verdict::add_condition(std::string name, bool holds) { add(std::move(name), "violated (0 or 1)", holds ? 0 : 1, 0); }

void Verdict::add_set(std::string_view prefix, std::span<const NamedError> errors, double tolerance, std::string_view measure) {
  for (const NamedError& e : errors) {
    checks_.push_back(make_check(fmt::format("{}/{}", prefix, e.name),
                                 e.note.empty() ? std::string(measure) : fmt::format("{} ({})", measure, e.note),
                                 e.error.relative, tolerance, e.error.max_abs));
  }
}

void Verdict::add_set(std::string_view prefix, std::span<const NamedError> errors,
                      const std::map<std::string, double>& tolerances) {
  for (const NamedError& e : errors) {
    const auto found = tolerances.find(e.name);
    if (found != tolerances.end()) {
      add_set(prefix, {&e, 1}, found->second);
    } else {
      NamedError unknown = e;
      unknown.error.relative = std::numeric_limits<double>::infinity();
      if (unknown.note.empty()) unknown.note = "no tolerance for this name";
      add_set(prefix, {&unknown, 1}, 0);
    }
  }
}

bool Verdict::pass() const {
  return std::all_of(checks_.begin(), checks_.end(), [](const Check& c) { return c.pass; }) &&
         std::all_of(claims_.begin(), claims_.end(), [](const Claim& c) { return c.pass; });
}

std::string checks_table(std::span<const Check> checks) {
  if (checks.empty()) return "";
  std::vector<std::vector<std::string>> rows{{"check", "count", "worst", "measure", "value", "tolerance", "max |a-b|", ""}};
  std::int64_t failed = 0;
  for (const Group& g : group_checks(checks)) {
    const Check& w = *g.worst;
    const std::string rest = w.name == g.name ? "" : w.name.substr(g.name.size() + 1);
    const std::string verdict = g.failed == 0 ? verdict_word(true) : fmt::format("FAIL ({})", g.failed);
    rows.push_back({g.name, fmt::format("{}", g.checks), rest, w.measure, scientific(w.value), scientific(w.tolerance),
                    w.max_abs < 0 ? "" : scientific(w.max_abs), verdict});
    failed += g.failed;
  }
  std::string text = format_table(rows, "lrllrrrl");
  if (failed == 0) return text + fmt::format("all {} checks hold\n", checks.size());
  text += fmt::format("{} of {} checks failed:\n", failed, checks.size());
  std::vector<std::vector<std::string>> failures{{"failed check", "measure", "value", "tolerance", "max |a-b|"}};
  for (const Check& c : checks) {
    if (!c.pass)
      failures.push_back(
          {c.name, c.measure, scientific(c.value), scientific(c.tolerance), c.max_abs < 0 ? "" : scientific(c.max_abs)});
  }
  return text + format_table(failures, "llrrr");
}

std::string claims_table(std::span<const Claim> claims) {
  if (claims.empty()) return "";
  std::vector<std::vector<std::string>> rows{{"claim", "expected", "measured", "within", "", "note"}};
  for (const Claim& c : claims) {
    const std::string within = c.tolerance == 0 ? "exact" : fmt::format("{:.3g} %", 100 * c.tolerance);
    rows.push_back({c.name, quantity(c.expected, c.unit), quantity(c.measured, c.unit), within, verdict_word(c.pass), c.note});
  }
  return format_table(rows, "lrrrll");
}

}  // namespace ref5d
