#include "common/verify/run_checks.h"

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

}  // namespace

double yardstick_error(const RunValues& own, const RunValues& truth) {
  double worst = error_of_all(update(own), update(truth));
  for (auto values : {&RunValues::losses, &RunValues::grad_norms}) {
    for (const NamedError& e : compare_series(own.*values, truth.*values)) worst = std::max(worst, e.error.relative);
  }
  return worst;
}

void check_run(Verdict& verdict, Dtype dtype, const RunValues& candidate, const RunValues& truth, const RunValues* own) {
  const bool fp64 = dtype == Dtype::kFp64;
  if (!fp64 && own == nullptr) throw std::logic_error("fp32 and bf16 need a single-device run of their own dtype as yardstick");

  const NamedValues truth_update = update(truth);
  const double own_update_error = fp64 ? 0 : error_of_all(update(*own), truth_update);
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
  for (const NamedError& e : compare_sets(update(*own), truth_update, CompareKind::kUpdate))
    worst_own = std::max(worst_own, e.error.relative);
  verdict.add_set("updates", compare_sets(update(candidate), truth_update, CompareKind::kUpdate),
                  yardstick_tolerance(dtype, worst_own), "relative error of 99%");
}

}  // namespace ref5d
