#include "common/model/norm.h"

#include "common/kernels/layernorm.h"
#include "common/kernels/rmsnorm.h"
#include "common/kernels/row_sums.h"

namespace ref5d {

namespace {

// The sum over rows, from its partial sums: weight-gradient work like any other.
void add_later(const Context& ctx, const std::shared_ptr<Parameter>& p, const Tensor& partials) {
  Stream& stream = ctx.stream;
  auto work = [p, &stream, partials] {
    const auto [gradient, accumulate] = p->begin_contribution(stream);
    add_row_sums(stream, gradient, partials, accumulate);
    p->end_contribution(stream);
  };
  ctx.weight_grads->add(std::move(work), {partials});
}

}  // namespace

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
  if (kind_ == NormKind::kRms) {
    const Tensor rstd = saved.pop("norm.rstd"), x = saved.pop("norm.x");
    add_later(ctx, weight, rmsnorm_backward_input(ctx.stream, dx, dy, x, rstd, weight->weight, accumulate));
  } else {
    const Tensor mean = saved.pop("norm.mean"), rstd = saved.pop("norm.rstd"), x = saved.pop("norm.x");
    const auto [dw, db] = layernorm_backward_input(ctx.stream, dx, dy, x, mean, rstd, weight->weight, accumulate);
    add_later(ctx, bias, db);
    add_later(ctx, weight, dw);
  }
}

}  // namespace ref5d
