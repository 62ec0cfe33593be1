#include "03_tensor_parallel/parallel_linear.h"

namespace ref5d::tensor_parallel {

void replicate(Parameter& p, int ranks) {
  p.placement.dim = 0;
  p.placement.segments = {{0, p.global_shape[0], ranks}};
}

ColumnParallelLinear::ColumnParallelLinear(const Linear& whole, const std::vector<Segment>& segments) : Linear(whole) {
  weight->placement.dim = stored_in_out ? 1 : 0;
  weight->placement.segments = segments;
  if (!bias) return;
  bias->placement.dim = 0;
  bias->placement.segments = segments;
}

RowParallelLinear::RowParallelLinear(const Linear& whole, const std::vector<Segment>& segments, int ranks,
                                     bool bias_on_every_rank)
    : Linear(whole), bias_on_every_rank_(bias_on_every_rank) {
  weight->placement.dim = stored_in_out ? 0 : 1;
  weight->placement.segments = segments;
  if (bias) replicate(*bias, ranks);
}

Tensor RowParallelLinear::multiply(Context& ctx, const Tensor& x) const {
  Tensor y = Linear::multiply(ctx, x);
  if (bias_on_every_rank_) Linear::add_bias(ctx, y);
  return y;
}

void RowParallelLinear::add_bias(Context& ctx, const Tensor& y) const {
  if (!bias_on_every_rank_) Linear::add_bias(ctx, y);
}

}  // namespace ref5d::tensor_parallel
