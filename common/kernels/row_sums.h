// Two-stage sums over rows, for gradients of parameters that every row shares (norm weights, biases): each block sums a fixed
// stretch of rows into a partial row, then the partials are added in order. No atomics, so the result repeats bitwise.
#pragma once

#include <algorithm>

#include "common/tensor/tensor.h"

namespace ref5d {

// Rows of the first stage's result. Depends on the shape only.
[[nodiscard]] inline std::int64_t row_sum_partials(std::int64_t rows) { return std::clamp<std::int64_t>(rows / 32, 1, 64); }

// Partials [P, H] in the accumulator's dtype of `dtype`.
[[nodiscard]] Tensor allocate_row_sum_partials(std::int64_t rows, std::int64_t columns, Dtype dtype, Stream& stream);

// Second stage: out [H] = the sum of the partials [P, H], or += if accumulate. out is of the model's dtype or its
// accumulator's.
void add_row_sums(Stream& stream, const Tensor& out, const Tensor& partials, bool accumulate);

}  // namespace ref5d
