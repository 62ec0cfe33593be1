#pragma once

#include <vector>

#include "common/verify/compare.h"

namespace ref5d {

// What is compared of a run.
struct RunValues {
  std::vector<double> losses, grad_norms;         // of each step
  std::vector<double> aux_losses;                 // the same of a model with experts,
  NamedValues buffers;                            // and what no gradient moves, after the last step
  NamedValues initial, gradients, final_weights;  // gradients: of the first step, before clipping
  // AdamW's epsilon over the first step's clip factor: what it is beside `gradients`. 0 where that step was not AdamW's first
  // (a run that was resumed), so that the update does not follow from it.
  double epsilon = 1e-8;
};

// What training did to each parameter: final - initial.
[[nodiscard]] inline NamedValues update(const RunValues& r) { return difference(r.final_weights, r.initial); }

}  // namespace ref5d
