// The comparison every program makes: a run against the single-device baseline from the same weights on the same global
// batches.
#pragma once

#include "common/verify/check.h"
#include "common/verify/run_values.h"

namespace ref5d {

// Adds the checks: the loss and the gradient norm of every step, every gradient of the first step, and what training did to
// every parameter; of a model with experts also the auxiliary loss of every step, and its correction biases.
//   fp64: against the fp64 baseline, within 1e-11; parameters after the last step, of the elements whose gradient is more than
//   rounding (KnownElements).
//   fp32, bf16: `truth` is the fp64 baseline, `own` the single-device run in the candidate's dtype; the candidate's error
//   against the truth may be 3 times own's (Yardstick says what stands for own's after the first gradients). Parameters are
//   compared by their update (final - initial), since an unchanged weight would hide a missing one: of the elements that `own`
//   knows (KnownElements; the measure says how many if not all), 99%. Which tensors the elements with the smallest gradients
//   fall in is chance, so own's worst tensor is the yardstick of all. And of all elements, none may be off by more than three
//   of the largest updates, nor have stayed where it was while both other runs moved it, if its gradient cannot be rounding and
//   its update is a tenth of the largest or more.
void check_run(Verdict& verdict, Dtype dtype, const RunValues& candidate, const RunValues& truth, const RunValues* own);

}  // namespace ref5d
