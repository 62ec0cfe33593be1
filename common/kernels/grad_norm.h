// The global gradient norm, and the factor that clips it.
#pragma once

#include "common/tensor/runs.h"
#include "common/tensor/tensor.h"

namespace ref5d {

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
