// The two ways to cut a linear layer y = x W^T + b, whose weight is stored [out, in] (or [in, out], as GPT-2 has it).
//
//   column-parallel                            row-parallel
//
//   W's outputs are cut: each rank computes    W's inputs are cut, and with them x's columns: each rank
//   some columns of y from the whole x         computes a whole y that is one term of a sum
//
//        x        W0 | W1        y0 | y1            x0 | x1      W0       y = x0 W0^T
//      [T, in]                                                  ----        + x1 W1^T
//                                                                W1
//   b is cut with y                            b is whole on every rank and added once, to the sum
//
// "Column" and "row" are those of W^T, the matrix that x is multiplied by. What has to travel before and after is the
// conjugate operators' (conjugates.h), and not the layer's: sequence parallelism replaces it.
#pragma once

#include <vector>

#include "03_tensor_parallel/axis.h"
#include "common/model/linear.h"

namespace ref5d::tensor_parallel {

// Every rank of the axis holds all of it: it counts once in the gradient norm.
void replicate(Parameter& p, int ranks);

class ColumnParallelLinear : public Linear {
 public:
  // Takes over the parameters of `whole`, which have no storage yet, and keeps the outputs in `segments`.
  ColumnParallelLinear(const Linear& whole, const std::vector<Segment>& segments);
};

class RowParallelLinear : public Linear {
 public:
  // Keeps the inputs in `segments`. ranks: how many hold the bias. bias_on_every_rank: a mistake to show (P24), each rank
  // adds it to its own term.
  RowParallelLinear(const Linear& whole, const std::vector<Segment>& segments, int ranks, bool bias_on_every_rank = false);
  // The rank's term of the sum.
  [[nodiscard]] Tensor multiply(Context& ctx, const Tensor& x) const override;
  // To the sum.
  void add_bias(Context& ctx, const Tensor& y) const override;

 private:
  bool bias_on_every_rank_;  // a mistake to show
};

}  // namespace ref5d::tensor_parallel
