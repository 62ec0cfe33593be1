// The balance without a loss: a bias for each expert, which takes part in the choice alone and follows the load.
#pragma once

#include "common/tensor/tensor.h"

namespace ref5d {

// bias [E] (fp32 or fp64) += speed * sign(mean of the counts - counts[e]); counts [E] fp64, those of all tokens of the step. An
// expert that has exactly the mean keeps its bias. Wang et al. 2024, "Auxiliary-Loss-Free Load Balancing", algorithm 1;
// DeepSeek-V3, section 2.1.2.
void move_correction_bias(Stream& stream, const Tensor& bias, const Tensor& counts, double speed);

}  // namespace ref5d
