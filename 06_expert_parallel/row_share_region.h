// Whole experts on every rank along tp, whose activations are whole as well: each rank takes its share of the rows, so that no
// token is computed twice, and the results are gathered.
#pragma once

#include <memory>

#include "03_tensor_parallel/axis.h"
#include "common/model/linear.h"

namespace ref5d::expert_parallel {

class RowShareRegion : public Region {
 public:
  explicit RowShareRegion(std::shared_ptr<tensor_parallel::Axis> axis) : axis_(std::move(axis)) {}

  // Forward takes the own rows, and so backward gathers all ranks'; leave is the other way round.
  [[nodiscard]] Tensor enter(Context& ctx, const Tensor& x) override;
  [[nodiscard]] PendingTensor begin_enter_backward(Context& ctx, const Tensor& dx) override;
  [[nodiscard]] Tensor leave(Context& ctx, const Tensor& y) override;
  [[nodiscard]] Tensor leave_backward(Context& ctx, const Tensor& dy) override;

 private:
  [[nodiscard]] Tensor own_rows(const Tensor& x) const;

  std::shared_ptr<tensor_parallel::Axis> axis_;
};

}  // namespace ref5d::expert_parallel
