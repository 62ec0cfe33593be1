#include "common/model/mlp.h"

#include <cmath>

#include "common/kernels/gelu.h"
#include "common/kernels/swiglu.h"

namespace ref5d {

DenseMlp::DenseMlp(const GptConfig& c, std::int64_t layer)
    : DenseMlp(c, layer, (c.family == Family::kGpt2 ? "transformer.h." : "model.layers.") + std::to_string(layer) + ".mlp.") {}

DenseMlp::DenseMlp(const GptConfig& c, std::int64_t layer, const std::string& name) : layer_(layer) {
  const bool gpt2 = c.family == Family::kGpt2;
  const double down_std = c.init_std / std::sqrt(2.0 * static_cast<double>(c.layers));
  if (c.mlp == MlpKind::kSwiglu)
    gate = std::make_unique<Linear>(name + "gate_proj", c.hidden, c.ffn, c.biases, false, c.init_std);
  up = std::make_unique<Linear>(name + (gpt2 ? "c_fc" : "up_proj"), c.hidden, c.ffn, c.biases, gpt2, c.init_std);
  down = std::make_unique<Linear>(name + (gpt2 ? "c_proj" : "down_proj"), c.ffn, c.hidden, c.biases, gpt2, down_std);
}

std::vector<std::shared_ptr<Parameter>> DenseMlp::parameters() const {
  std::vector<std::shared_ptr<Parameter>> all;
  append(all, gate);
  append(all, up);
  append(all, down);
  return all;
}

Tensor DenseMlp::dispatch(Context& ctx, const Tensor& x, Saved& saved, std::any&) {
  ctx.see_sub("sub", layer_, "mlp_in", x);
  Tensor in = region->enter(ctx, x);
  saved.push("mlp.in", region->keep(ctx, x, in));
  return in;
}

Tensor DenseMlp::compute(Context& ctx, const Tensor& in, Saved& saved, std::any&) {
  const Tensor u = up->forward(ctx, in);
  const Tensor a = ctx.activation({u.dim(0), u.dim(1)});
  if (gate) {
    const Tensor g = gate->forward(ctx, in);
    if (ctx.fused) {
      swiglu_forward(ctx.stream, a, g, u);
    } else {
      swiglu_forward_unfused(ctx.stream, a, ctx.activation({u.dim(0), u.dim(1)}), g, u);
    }
    saved.push("mlp.gate", g);
  } else {
    gelu_forward(ctx.stream, a, u);
  }
  saved.push("mlp.up", u);
  saved.push("mlp.act", a);
  return down->multiply(ctx, a);
}

Tensor DenseMlp::combine(Context& ctx, const Tensor& partial, Saved&, std::any&) {
  Tensor y = region->leave(ctx, partial);
  down->add_bias(ctx, y);
  ctx.see_sub("sub", layer_, "mlp_out", y);
  return y;
}

Tensor DenseMlp::combine_backward(Context& ctx, const Tensor& dy, Saved&, std::any&) {
  ctx.see_sub("sub_grad", layer_, "mlp_out", dy);
  down->backward_bias(ctx, dy);
  return region->leave_backward(ctx, dy);
}

Tensor DenseMlp::compute_backward(Context& ctx, const Tensor& dy, Saved& saved, std::any& state) {
  const Tensor a = saved.pop("mlp.act"), u = saved.pop("mlp.up");
  const Tensor da = ctx.activation({a.dim(0), a.dim(1)});
  down->backward_input(ctx, da, dy, false);
  down->backward_weight(ctx, a, dy);
  Tensor dx = ctx.activation({dy.dim(0), up->in()});
  Tensor dg;
  const Tensor du = ctx.activation({u.dim(0), u.dim(1)});
  if (gate) {
    const Tensor g = saved.pop("mlp.gate");
    dg = ctx.activation({g.dim(0), g.dim(1)});
    swiglu_backward(ctx.stream, dg, du, da, g, u);
  } else {
    gelu_backward(ctx.stream, du, da, u);
  }
  const PendingTensor restoring = region->begin_restore(ctx, saved.pop("mlp.in"));
  if (gate) gate->backward_input(ctx, dx, dg, false);
  up->backward_input(ctx, dx, du, gate != nullptr);
  const Tensor in = restoring(ctx);
  state = region->begin_enter_backward(ctx, dx);
  if (gate) {
    gate->backward_bias(ctx, dg);
    gate->backward_weight(ctx, in, dg);
  }
  up->backward_bias(ctx, du);
  up->backward_weight(ctx, in, du);
  ctx.weight_grads->run_ready();
  return {};  // dispatch_backward takes it from the region
}

Tensor DenseMlp::dispatch_backward(Context& ctx, const Tensor&, Saved&, std::any& state) {
  Tensor dx = std::any_cast<PendingTensor&>(state)(ctx);
  ctx.see_sub("sub_grad", layer_, "mlp_in", dx);
  return dx;
}

}  // namespace ref5d
