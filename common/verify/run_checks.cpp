#include "common/verify/run_checks.h"

#include <algorithm>
#include <stdexcept>

namespace ref5d {

namespace {

struct Comparison {
  const char* group;
  std::vector<NamedError> candidate, own;  // own is empty in fp64
};

// A single number's error can be small by luck; what a dtype does to a training run only grows with its steps.
std::vector<NamedError> worst_so_far(std::vector<NamedError> series) {
  for (std::size_t i = 1; i < series.size(); ++i) {
    series[i].error.relative = std::max(series[i].error.relative, series[i - 1].error.relative);
  }
  return series;
}

void add(Verdict& verdict, Dtype dtype, const Comparison& c) {
  if (dtype == Dtype::kFp64) {
    verdict.add_set(c.group, c.candidate, least_tolerance(dtype));
  } else {
    verdict.add_set(c.group, c.candidate, yardstick_tolerances(dtype, c.own));
  }
}

}  // namespace

void check_run(Verdict& verdict, Dtype dtype, const RunValues& candidate, const RunValues& truth, const RunValues* own) {
  const bool fp64 = dtype == Dtype::kFp64;
  if (!fp64 && own == nullptr) throw std::logic_error("fp32 and bf16 need a single-device run of their own dtype as yardstick");

  auto series = [&](const char* group, std::vector<double> RunValues::*values) {
    std::vector<NamedError> own_errors;
    if (!fp64) own_errors = worst_so_far(compare_series(own->*values, truth.*values));
    add(verdict, dtype, {group, compare_series(candidate.*values, truth.*values), own_errors});
  };
  series("loss", &RunValues::losses);
  series("grad norm", &RunValues::grad_norms);

  add(verdict, dtype,
      {"gradients", compare_sets(candidate.gradients, truth.gradients, CompareKind::kGradient),
       fp64 ? std::vector<NamedError>{} : compare_sets(own->gradients, truth.gradients, CompareKind::kGradient)});

  if (fp64) {
    add(verdict, dtype,
        {"parameters", compare_sets(candidate.final_weights, truth.final_weights, CompareKind::kParameter), {}});
    return;
  }
  auto update = [](const RunValues& r) { return difference(r.final_weights, r.initial); };
  const NamedValues truth_update = update(truth);
  double worst_own = 0;
  for (const NamedError& e : compare_sets(update(*own), truth_update, CompareKind::kParameter))
    worst_own = std::max(worst_own, e.error.relative);
  verdict.add_set("updates", compare_sets(update(candidate), truth_update, CompareKind::kParameter),
                  yardstick_tolerance(dtype, worst_own));
}

}  // namespace ref5d
