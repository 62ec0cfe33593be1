// The arithmetic of reductions.
#pragma once

#include "common/comm/transport.h"
#include "common/tensor/tensor.h"

namespace ref5d {

// out [n] = the sum (or maximum) over parts 0 .. N-1 in this order, in the accumulator's dtype, rounded once. Part `rank` is
// own [n] (out may be own), the others are the rows of received [N-1, n]. fp64, fp32, bf16, int32.
void reduce_in_rank_order(Stream& stream, const Tensor& out, const Tensor& own, const Tensor& received, int rank, ReduceOp op);

}  // namespace ref5d
