// Where activations enter and leave the layers that are cut: four operators in two conjugate pairs, each the other's backward.
//
//              forward             backward
//   copy       nothing             all-reduce          before a column-parallel layer     (Megatron's f)
//   reduce     all-reduce          nothing             after a row-parallel layer         (Megatron's g)
//   gather     all-gather          keep the own        after a column-parallel layer whose output is needed whole
//   split      keep the own        all-gather          before a row-parallel layer whose input is whole
//
// Why: a column-parallel layer computes y_r = x W_r^T on every rank r from the same x, so the loss reaches x through all of
// them, and dx = sum over r of dy_r W_r. A row-parallel layer's output is y = sum over r of x_r W_r^T. Every term enters it
// with factor 1, so each rank's gradient is dy as it is.
//
// Source: Shoeybi et al. 2019, "Megatron-LM", section 3.
#pragma once

#include "03_tensor_parallel/axis.h"
#include "common/model/linear.h"

namespace ref5d::tensor_parallel {

// The sum of x over the axis's ranks, in its place; backward of copy and forward of reduce. The first returns at once, and what
// the model's stream computes until it calls the result runs meanwhile. `phase`: what the traffic is entered under.
[[nodiscard]] PendingTensor begin_all_reduce(Axis& axis, Context& ctx, const Tensor& x, const char* phase);
[[nodiscard]] Tensor all_reduce(Axis& axis, Context& ctx, const Tensor& x, const char* phase);

// The columns of all ranks, [T, columns], from each one's share of them, own [T, share] contiguous; forward of gather and
// backward of split. Shares travel padded to the largest.
[[nodiscard]] Tensor all_gather_columns(Axis& axis, Context& ctx, const Tensor& own, std::int64_t columns, const char* phase);
// This rank's share of x's columns, as an array of its own; backward of gather and forward of split.
[[nodiscard]] Tensor own_columns(Axis& axis, Context& ctx, const Tensor& x);

}  // namespace ref5d::tensor_parallel
