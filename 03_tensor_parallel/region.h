// Tensor parallelism's part of the model's seam around cut layers: copy on the way in, reduce on the way out.
#pragma once

#include <memory>

#include "03_tensor_parallel/conjugates.h"

namespace ref5d::tensor_parallel {

class TensorParallelRegion : public Region {
 public:
  // Its traffic is entered under these phases, and what a forward that runs again sends under "recomputation".
  TensorParallelRegion(std::shared_ptr<Axis> axis, const char* forward_phase, const char* backward_phase)
      : axis_(std::move(axis)), forward_phase_(forward_phase), backward_phase_(backward_phase) {}

  // enter is copy: forward does nothing.
  [[nodiscard]] PendingTensor begin_enter_backward(Context& ctx, const Tensor& dx) override;
  // leave is reduce: backward does nothing.
  [[nodiscard]] Tensor leave(Context& ctx, const Tensor& y) override;

 private:
  std::shared_ptr<Axis> axis_;
  const char *forward_phase_, *backward_phase_;
};

}  // namespace ref5d::tensor_parallel
