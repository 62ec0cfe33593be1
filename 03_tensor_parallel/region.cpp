#include "03_tensor_parallel/region.h"

namespace ref5d::tensor_parallel {

// dx is on the critical path, and the weight gradients that are computed next are not: so it travels meanwhile.
PendingTensor TensorParallelRegion::begin_enter_backward(Context& ctx, const Tensor& dx) {
  if (axis_->faults().no_input_sum) return Region::begin_enter_backward(ctx, dx);
  PendingTensor travelling = begin_all_reduce(*axis_, ctx, dx, backward_phase_);
  if (axis_->options().overlap) return travelling;
  const Tensor sum = travelling(ctx);
  return [sum](Context&) { return sum; };
}

// Nothing can be computed meanwhile: what comes next needs all of y.
Tensor TensorParallelRegion::leave(Context& ctx, const Tensor& y) {
  return all_reduce(*axis_, ctx, y, ctx.recomputing ? "recomputation" : forward_phase_);
}

}  // namespace ref5d::tensor_parallel
