// How far an fp32 or bf16 run may be from the truth after its first gradients: measured on `own`, the single-device run in that
// dtype, against `truth`, the fp64 baseline. A first gradient's own error is its yardstick as it is. What follows it (updates,
// later losses and gradient norms) is a handful of draws from wide distributions, and own may have been lucky in them.
#pragma once

#include <vector>

#include "common/verify/known_elements.h"

namespace ref5d {

struct Yardstick {
  std::vector<NamedError> losses, grad_norms;  // of each step
  double update = 0;                           // of every tensor: own's worst
};
[[nodiscard]] Yardstick yardstick_of(const RunValues& own, const RunValues& truth);

// The worst of it: an update, a later loss or gradient norm. Above kMostYardstickError, three times it would exceed
// kMostTolerance: such a check says little, and right runs may fail it.
[[nodiscard]] double yardstick_error(const RunValues& own, const RunValues& truth);

// The errors of what training did to each parameter: of 99% of the known elements (kUpdateTrim).
[[nodiscard]] std::vector<NamedError> update_errors(const RunValues& run, const RunValues& truth,
                                                    const KnownElements& elements);

}  // namespace ref5d
