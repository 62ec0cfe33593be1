// RMSNorm or LayerNorm over the last dim, as a module.
#pragma once

#include <memory>

#include "common/model/config.h"
#include "common/model/context.h"
#include "common/model/parameter.h"

namespace ref5d {

class Norm {
 public:
  Norm(const std::string& name, std::int64_t size, NormKind kind, double eps);

  // x [R, size] -> y [R, size].
  [[nodiscard]] Tensor forward(Context& ctx, const Tensor& x, Saved& saved) const;
  // dx [R, size] = the gradient of x (or += if accumulate). The weight's is summed over stretches of rows at once, since it
  // reads the same arrays; to add the stretches up is left to ctx.weight_grads.
  void backward(Context& ctx, const Tensor& dx, const Tensor& dy, Saved& saved, bool accumulate) const;

  std::shared_ptr<Parameter> weight, bias;  // bias: LayerNorm only

 private:
  NormKind kind_;
  double eps_;
};

}  // namespace ref5d
