#include "common/model/norm.h"

#include "common/kernels/layernorm.h"
#include "common/kernels/rmsnorm.h"

namespace ref5d {

Norm::Norm(const std::string& name, std::int64_t size, NormKind kind, double eps) : kind_(kind), eps_(eps) {
  weight = std::make_shared<Parameter>(name + ".weight", Shape{size}, Init::kOne, 0.0, false);
  if (kind == NormKind::kLayer) bias = std::make_shared<Parameter>(name + ".bias", Shape{size}, Init::kZero, 0.0, false);
}

Tensor Norm::forward(Context& ctx, const Tensor& x, Saved& saved) const {
  Tensor y = ctx.activation({x.dim(0), x.dim(1)});
  const Tensor rstd = ctx.statistic({x.dim(0)});
  saved.push("norm.x", x);
  saved.push("norm.rstd", rstd);
  if (kind_ == NormKind::kRms) {
    if (ctx.fused) {
      rmsnorm_forward(ctx.stream, y, rstd, x, weight->weight, eps_);
    } else {
      const Tensor squares = ctx.activation(y.shape()), normalised = ctx.activation(y.shape());
      rmsnorm_forward_unfused(ctx.stream, y, rstd, squares, normalised, x, weight->weight, eps_);
    }
  } else {
    const Tensor mean = ctx.statistic({x.dim(0)});
    saved.push("norm.mean", mean);
    layernorm_forward(ctx.stream, y, mean, rstd, x, weight->weight, bias->weight, eps_);
  }
  return y;
}

void Norm::backward(Context& ctx, const Tensor& dx, const Tensor& dy, Saved& saved, bool accumulate) const {
  const auto [dw, accumulate_dw] = weight->begin_contribution(ctx.stream);
  if (kind_ == NormKind::kRms) {
    const Tensor rstd = saved.pop("norm.rstd"), x = saved.pop("norm.x");
    rmsnorm_backward(ctx.stream, dx, dw, dy, x, rstd, weight->weight, accumulate, accumulate_dw);
  } else {
    const auto [db, accumulate_db] = bias->begin_contribution(ctx.stream);
    const Tensor mean = saved.pop("norm.mean"), rstd = saved.pop("norm.rstd"), x = saved.pop("norm.x");
    layernorm_backward(ctx.stream, dx, dw, db, dy, x, mean, rstd, weight->weight, accumulate, accumulate_dw, accumulate_db);
    bias->end_contribution(ctx.stream);
  }
  weight->end_contribution(ctx.stream);
}

}  // namespace ref5d
