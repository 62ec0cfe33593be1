// Rows of the residual stream, cut over the ranks of the tensor-parallel axis: T rows in shares that differ by one at most.
#pragma once

#include <vector>

#include "03_tensor_parallel/axis.h"
#include "common/model/linear.h"

namespace ref5d::sequence_parallel {

// The rows of all ranks, [rows, H], from each one's share. `phase`: what the traffic is entered under. Returns at once, and
// what the model's stream computes until the result is asked for runs meanwhile.
[[nodiscard]] PendingTensor begin_all_gather(tensor_parallel::Axis& axis, Context& ctx, const Tensor& own, std::int64_t rows,
                                             const char* phase);
// This rank's rows of the sum of x [rows, H] over the ranks: the other's backward.
[[nodiscard]] PendingTensor begin_reduce_scatter(tensor_parallel::Axis& axis, Context& ctx, const Tensor& x, const char* phase);

// This rank's rows of each micro-batch, among those of all `samples`, of which a rank has so many tokens each. For dumps.
[[nodiscard]] std::vector<Segment> rows_of_shares(const tensor_parallel::Axis& axis, std::int64_t samples,
                                                  std::int64_t micro_batch, std::int64_t tokens_per_sequence);

}  // namespace ref5d::sequence_parallel
