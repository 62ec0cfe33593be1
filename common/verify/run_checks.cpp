#include "common/verify/run_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace ref5d {

namespace {

struct Comparison {
  const char* group;
  std::vector<NamedError> candidate, own;  // own is empty in fp64
};

// ||a - b|| / ||b|| over all tensors.
double error_of_all(const NamedValues& a, const NamedValues& b) {
  NormSum off, all;
  for (const auto& [name, values] : difference(a, b)) off.add(values);
  for (const auto& [name, values] : b) all.add(values);
  return all.norm() > 0 ? off.norm() / all.norm() : 0;
}

// The yardstick of a loss or a gradient norm. The own run's error of a single number can be small by luck: of two errors drawn
// from one normal distribution, one exceeds three times the other in a fifth of all cases. So three things count:
//   the worst own error so far, since what a dtype does to a training run only grows with its steps;
//   `first`, an error that the number cannot escape at the first step;
//   what the weights' error makes of it later. Training changed the weights by the update, and thereby the number by
//   |x_s - x_1|. Of that update the own run has the share `update_error` wrong, which changes the number by that share of it.
std::vector<NamedError> series_yardstick(std::vector<NamedError> own, std::span<const double> truth, double first,
                                         double update_error) {
  double worst = first, change = 0;
  for (std::size_t s = 0; s < std::min(own.size(), truth.size()); ++s) {
    change = std::max(change, std::abs(truth[s] - truth[0]));
    worst = std::max(worst, own[s].error.relative);
    own[s].error.relative = std::max(worst, truth[s] == 0 ? 0 : update_error * change / std::abs(truth[s]));
  }
  return own;
}

void add(Verdict& verdict, Dtype dtype, const Comparison& c) {
  if (dtype == Dtype::kFp64) {
    verdict.add_set(c.group, c.candidate, least_tolerance(dtype));
  } else {
    verdict.add_set(c.group, c.candidate, yardstick_tolerances(dtype, c.own));
  }
}

NamedValues update(const RunValues& r) { return difference(r.final_weights, r.initial); }

// The update of r, but the truth's in each element whose gradient `own` has wrong by more than a third: it is rounding and
// nothing else (a key's bias, whose gradient is zero in exact arithmetic), and so is which way Adam moves the element. Returns
// in `known` how many elements of each tensor are left to compare.
NamedValues known_update(const RunValues& r, const RunValues& own, const RunValues& truth, const NamedValues& truth_update,
                         std::map<std::string, std::int64_t>* known = nullptr) {
  NamedValues result = update(r);
  // A run with wrong gradients knows nothing, and excuses nothing.
  const bool sound = error_of_all(own.gradients, truth.gradients) <= kMostYardstickError;
  for (auto& [name, u] : result) {
    const auto exact = truth.gradients.find(name), rounded = own.gradients.find(name);
    std::int64_t count = static_cast<std::int64_t>(u.size());
    if (sound && exact != truth.gradients.end() && rounded != own.gradients.end()) {
      for (std::size_t i = 0; i < u.size(); ++i) {
        if (std::abs(rounded->second[i] - exact->second[i]) <= std::abs(exact->second[i]) / 3 || !std::isfinite(u[i])) continue;
        u[i] = truth_update.at(name)[i];
        --count;
      }
    }
    if (known != nullptr) (*known)[name] = count;
  }
  return result;
}

}  // namespace

double yardstick_error(const RunValues& own, const RunValues& truth) {
  const NamedValues truth_update = update(truth);
  double worst = error_of_all(known_update(own, own, truth, truth_update), truth_update);
  for (auto values : {&RunValues::losses, &RunValues::grad_norms}) {
    for (const NamedError& e : compare_series(own.*values, truth.*values)) worst = std::max(worst, e.error.relative);
  }
  return worst;
}

void check_run(Verdict& verdict, Dtype dtype, const RunValues& candidate, const RunValues& truth, const RunValues* own) {
  const bool fp64 = dtype == Dtype::kFp64;
  if (!fp64 && own == nullptr) throw std::logic_error("fp32 and bf16 need a single-device run of their own dtype as yardstick");

  const NamedValues truth_update = update(truth);
  const double own_update_error = fp64 ? 0 : error_of_all(known_update(*own, *own, truth, truth_update), truth_update);
  // | ||a|| - ||b|| | <= ||a - b||: a norm's error is smaller than its vector's by luck alone.
  const double own_gradient_error = fp64 ? 0 : error_of_all(own->gradients, truth.gradients);

  auto series = [&](const char* group, std::vector<double> RunValues::*values, double first) {
    std::vector<NamedError> yardstick;
    if (!fp64)
      yardstick = series_yardstick(compare_series(own->*values, truth.*values), truth.*values, first, own_update_error);
    add(verdict, dtype, {group, compare_series(candidate.*values, truth.*values), yardstick});
  };
  series("loss", &RunValues::losses, 0);
  series("grad norm", &RunValues::grad_norms, own_gradient_error);

  add(verdict, dtype,
      {"gradients", compare_sets(candidate.gradients, truth.gradients, CompareKind::kGradient),
       fp64 ? std::vector<NamedError>{} : compare_sets(own->gradients, truth.gradients, CompareKind::kGradient)});

  if (fp64) {
    add(verdict, dtype,
        {"parameters", compare_sets(candidate.final_weights, truth.final_weights, CompareKind::kParameter), {}});
    return;
  }
  double worst_own = 0;
  for (const NamedError& e : compare_sets(known_update(*own, *own, truth, truth_update), truth_update, CompareKind::kUpdate))
    worst_own = std::max(worst_own, e.error.relative);
  std::map<std::string, std::int64_t> known;
  const NamedValues candidate_update = known_update(candidate, *own, truth, truth_update, &known);
  for (const NamedError& e : compare_sets(candidate_update, truth_update, CompareKind::kUpdate)) {
    std::string measure = "relative error of 99%";
    const auto compared = known.find(e.name);  // not a pool
    if (compared != known.end() && compared->second < static_cast<std::int64_t>(candidate_update.at(e.name).size()))
      measure += fmt::format(" of the {} known elements", compared->second);
    verdict.add_set("updates", {&e, 1}, yardstick_tolerance(dtype, worst_own), measure);
  }
}

}  // namespace ref5d
