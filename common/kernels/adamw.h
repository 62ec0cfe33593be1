// AdamW (Loshchilov and Hutter 2019) with bias correction and decoupled decay.
#pragma once

#include "common/tensor/runs.h"
#include "common/tensor/tensor.h"

namespace ref5d {

struct AdamwOptions {
  double lr = 3e-4, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1;
  // Where epsilon stands. Only kOutside is right; the others exist to show what they break (pitfall P16).
  enum class Epsilon { kOutside, kInsideRoot, kBeforeCorrection } epsilon = Epsilon::kOutside;
};

// One step (1-based) on n elements:
//   g = grad * grad_scale;  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
//   w -= lr * ( (m / (1 - b1^step)) / (sqrt(v / (1 - b2^step)) + eps) + weight_decay * w )
// weight in the model's dtype. master: fp32 for bf16 weights (the update is made there and weight is its rounding), undefined
// otherwise. grad: the model's dtype or its accumulator's. m, v: the accumulator's. grad_scale: fp64 [1] on the device.
// weight_decay of `options` applies; pass 0 for parameters without decay. All tensors contiguous, of the same number of
// elements.
void adamw(Stream& stream, const Tensor& weight, const Tensor& master, const Tensor& grad, const Tensor& m, const Tensor& v,
           const Tensor& grad_scale, const AdamwOptions& options, std::int64_t step);

// partials [ceil(n / kNormBlock)] (fp64): the sum of squares of each block of kNormBlock consecutive elements of x, in fp64.
// Blocks are of the tensor, not of a buffer, so the norm does not depend on buckets.
inline constexpr std::int64_t kNormBlock = 4096;
[[nodiscard]] inline std::int64_t norm_blocks(std::int64_t n) { return (n + kNormBlock - 1) / kNormBlock; }
void sum_of_squares(Stream& stream, const Tensor& partials, const Tensor& x);
// The same blocks, those of the whole tensor, where x is a part of it: partials [b] = (or += if add) weight times the sum of
// squares of what x has in block b of `runs`. x holds the part's elements from x_begin on. Parts that share no element sum up,
// block by block, to the whole tensor's partials.
void sum_of_squares_of_part(Stream& stream, const Tensor& partials, const Tensor& x, const Runs& runs, std::int64_t x_begin,
                            double weight, bool add);

// norm [1] = sqrt(sum of partials, in a fixed order); scale [1] = min(1, max_norm / norm), or 1 if max_norm <= 0. All fp64.
// When clipping, a norm that is not finite is the scale itself (infinite or NaN), so the step shows it instead of hiding it.
void clip_scale(Stream& stream, const Tensor& scale, const Tensor& norm, const Tensor& partials, double max_norm);

}  // namespace ref5d
