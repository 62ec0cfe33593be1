#include "common/model/linear.h"

#include "common/device/device.h"
#include "common/kernels/elementwise.h"

namespace ref5d {

Linear::Linear(const std::string& name, std::int64_t in, std::int64_t out, bool with_bias, bool in_out, double init_std,
               FlopsKind flops_kind)
    : stored_in_out(in_out), flops(flops_kind) {
  const Shape shape = in_out ? Shape{in, out} : Shape{out, in};
  weight = std::make_shared<Parameter>(name + ".weight", shape, Init::kNormal, init_std, true);
  if (with_bias) bias = std::make_shared<Parameter>(name + ".bias", Shape{out}, Init::kZero, 0.0, false);
}

Tensor Linear::multiply(Context& ctx, const Tensor& x) const {
  Tensor y = ctx.activation({x.dim(0), out()});
  gemm(ctx.stream, ctx.gemm, Transpose::kNo, stored_in_out ? Transpose::kNo : Transpose::kYes, 1.0, x, weight->weight, 0.0, y);
  device().flops().add(flops, gemm_flops(x.dim(0), out(), in()));
  return y;
}

void Linear::add_bias(Context& ctx, const Tensor& y) const {
  if (bias) bias_forward(ctx.stream, y, bias->weight);
}

void Linear::backward_input(Context& ctx, const Tensor& dx, const Tensor& dy, bool accumulate) const {
  gemm(ctx.stream, ctx.gemm, Transpose::kNo, stored_in_out ? Transpose::kYes : Transpose::kNo, 1.0, dy, weight->weight,
       accumulate ? 1.0 : 0.0, dx);
  device().flops().add(flops, gemm_flops(dy.dim(0), out(), in()));
}

void Linear::backward_weight(Context& ctx, const Tensor& x, const Tensor& dy) const {
  Stream& stream = ctx.stream;
  auto work = [this, &stream, kind = ctx.gemm, x, dy] {
    const auto [dw, accumulate] = weight->begin_contribution(stream);
    // dW [out, in] = dy^T x, or its transpose where the weight is stored so.
    gemm(stream, kind, Transpose::kYes, Transpose::kNo, 1.0, stored_in_out ? x : dy, stored_in_out ? dy : x,
         accumulate ? 1.0 : 0.0, dw);
    device().flops().add(flops, gemm_flops(out(), in(), x.dim(0)));
    weight->end_contribution(stream);
  };
  ctx.weight_grads->add(std::move(work), {x, dy});
}

void Linear::backward_bias(Context& ctx, const Tensor& dy) const {
  if (!bias) return;
  Stream& stream = ctx.stream;
  auto work = [this, &stream, dy] {
    const auto [db, accumulate] = bias->begin_contribution(stream);
    ref5d::bias_backward(stream, db, dy, accumulate);
    bias->end_contribution(stream);
  };
  ctx.weight_grads->add(std::move(work), {dy});
}

void append(std::vector<std::shared_ptr<Parameter>>& to, const std::unique_ptr<Linear>& linear) {
  if (!linear) return;
  to.push_back(linear->weight);
  if (linear->bias) to.push_back(linear->bias);
}

}  // namespace ref5d
