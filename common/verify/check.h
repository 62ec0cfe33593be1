// Checks (what must hold for a run to pass) and claims (what a lesson promises against what was measured).
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/verify/compare.h"

namespace ref5d {

struct Check {
  std::string name;     // "gradients/model.layers.0.mlp.up_proj.weight": what comes before the first '/' is its group
  std::string measure;  // what `value` is: "relative error"
  double value = 0;
  double tolerance = 0;
  bool pass = false;    // value <= tolerance, both finite
  double max_abs = -1;  // largest |a - b| of the compared elements, for the eye; -1 where nothing of the kind was compared
};

struct Claim {
  std::string name;
  double expected = 0;
  double measured = 0;
  double tolerance = 0;  // relative to |expected|; 0 asks for exact equality
  bool pass = false;
  std::string unit;
  std::string note;
};

[[nodiscard]] Check make_check(std::string name, std::string measure, double value, double tolerance, double max_abs = -1);
[[nodiscard]] Claim make_claim(std::string name, double expected, double measured, double tolerance = 0, std::string unit = "",
                               std::string note = "");

inline constexpr std::string_view kRelativeError = "relative error";

// Collects the checks and claims of a run.
class Verdict {
 public:
  void add(std::string name, std::string measure, double value, double tolerance);
  // A condition without a number ("replicas are bitwise equal"): value 0 or 1 against tolerance 0.
  void add_condition(std::string name, bool holds);
  // One check "prefix/NAME" per entry, on the relative error. An entry that could not be compared fails and says why.
  void add_set(std::string_view prefix, std::span<const NamedError> errors, double tolerance,
               std::string_view measure = kRelativeError);
  // The same with a tolerance per name (yardstick_tolerances). A name without one fails: nothing excuses it.
  void add_set(std::string_view prefix, std::span<const NamedError> errors, const std::map<std::string, double>& tolerances);
  void claim(Claim claim) { claims_.push_back(std::move(claim)); }

  [[nodiscard]] const std::vector<Check>& checks() const { return checks_; }
  [[nodiscard]] const std::vector<Claim>& claims() const { return claims_; }
  [[nodiscard]] bool pass() const;

 private:
  std::vector<Check> checks_;
  std::vector<Claim> claims_;
};

// A table with a line per group of checks: how many, and the one closest to (or furthest beyond) its tolerance; below it every
// failing check by name. Empty without checks.
[[nodiscard]] std::string checks_table(std::span<const Check> checks);
// A table of claims: expected, measured, holds. Empty without claims.
[[nodiscard]] std::string claims_table(std::span<const Claim> claims);

}  // namespace ref5d
