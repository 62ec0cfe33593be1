// Rotary position embedding (Su et al. 2021), in the half-split layout of Hugging Face checkpoints: element j of the first half
// of a head is paired with element j of the second half, and the pair is turned by position * theta^(-2j/D).
#pragma once

#include "common/tensor/tensor.h"

namespace ref5d {

// cos and sin [T, D/2], in the accumulator's dtype of `dtype` (computed in fp64, rounded once), for positions given by
// order - start (both int32 [T], see attention.h). Made once per micro-batch and shared by all layers. Throws std::logic_error
// for an odd head dim.
struct RopeTable {
  Tensor cos, sin;
};
[[nodiscard]] RopeTable make_rope_table(Stream& stream, const Tensor& order, const Tensor& start, std::int64_t head_dim,
                                        double theta, Dtype dtype);

// Turns x [T, heads * D] (any leading dim) in place; `inverse` turns back, which is the backward pass: the gradient of a
// rotation is the opposite rotation.
void rope(Stream& stream, const Tensor& x, const RopeTable& table, std::int64_t heads, bool inverse);

}  // namespace ref5d
