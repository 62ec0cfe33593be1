// The comparison every program makes: a run against the single-device baseline from the same weights on the same global
// batches.
#pragma once

#include <vector>

#include "common/verify/check.h"
#include "common/verify/compare.h"

namespace ref5d {

// What is compared of a run.
struct RunValues {
  std::vector<double> losses, grad_norms;         // of each step
  NamedValues initial, gradients, final_weights;  // gradients: of the first step, before clipping
  // AdamW's epsilon over the first step's clip factor: what it is beside `gradients`. 0 where that step was not AdamW's first
  // (a run that was resumed), so that the update does not follow from it.
  double epsilon = 1e-8;
};

// Adds the checks: the loss and the gradient norm of every step, every gradient of the first step, and what training did to
// every parameter.
//   fp64: against the fp64 baseline, within 1e-11; parameters after the last step.
//   fp32, bf16: `truth` is the fp64 baseline, `own` the single-device run in the candidate's dtype; the candidate's error
//   against the truth may be 3 times own's. Parameters are compared by their update (final - initial), since an unchanged
//   weight would hide a missing one. An update's yardstick is own's worst over all tensors: which tensors the elements with
//   the smallest gradients fall in is chance (kUpdateTrim). Elements of which `own` has the first gradient wrong by more than a
//   third are left out, and the measure says how many remain. Of all elements no
//   error may be above three of the largest updates, and those with a gradient above the rounding around it must have moved
//   where they move in both other runs. Where own was luckier in its first update than its
//   gradients' rounding lets expect, its errors after that count for more, by as much.
void check_run(Verdict& verdict, Dtype dtype, const RunValues& candidate, const RunValues& truth, const RunValues* own);

// The errors of what training did to each parameter, as check_run compares it: of 99% of the elements that `own` knows.
[[nodiscard]] std::vector<NamedError> update_errors(const RunValues& run, const RunValues& truth, const RunValues& own);

// The worst yardstick of what depends on more than the first step's gradients: an update, a later loss or gradient norm. Above
// kMostYardstickError, three times it would exceed kMostTolerance: such a check says little, and right runs may fail it.
inline constexpr double kMostYardstickError = kMostTolerance / 3;
[[nodiscard]] double yardstick_error(const RunValues& own, const RunValues& truth);

}  // namespace ref5d
