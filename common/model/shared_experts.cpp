#include "common/model/shared_experts.h"

#include "common/kernels/elementwise.h"

namespace ref5d {

namespace {

GptConfig as_wide_as_all(GptConfig c) {
  c.ffn *= c.moe.shared_experts;
  return c;
}

}  // namespace

SharedExperts::SharedExperts(const GptConfig& c, std::int64_t layer)
    : mlp(as_wide_as_all(c), layer, "model.layers." + std::to_string(layer) + ".mlp.shared_experts.") {}

void SharedExperts::begin_forward(Context& ctx, const Tensor& x, Pass& pass) {
  Context own(ctx, stream ? *stream : ctx.stream);
  own.probe = nullptr;  // the layer's input and output are the whole sublayer's
  if (stream) order(ctx.stream, *stream);
  pass.in_use = {x};
  pass.input = x;
  std::any state;
  const Tensor in = mlp.dispatch(own, x, pass.saved, state);
  pass.result = mlp.combine(own, mlp.compute(own, in, pass.saved, state), pass.saved, state);
}

void SharedExperts::begin_backward(Context& ctx, const Tensor& dy, Pass& pass) {
  Context own(ctx, stream ? *stream : ctx.stream);
  own.probe = nullptr;
  WeightGrads work;
  work.defer(ctx.weight_grads->deferred());
  own.weight_grads = &work;
  if (stream) order(ctx.stream, *stream);
  // The input may be an activation of the model's stream that backward's weight gradients are the last to hold.
  pass.in_use = {dy, pass.input};
  pass.input = {};
  std::any state;
  const Tensor dout = mlp.compute_backward(own, mlp.combine_backward(own, dy, pass.saved, state), pass.saved, state);
  pass.result = mlp.dispatch_backward(own, dout, pass.saved, state);
  work.run_ready();
  Stream &compute = ctx.stream, &side = own.stream;
  const auto between = [](Stream& from, Stream& to) {
    return [&from, &to] {
      if (&from != &to) order(from, to);
    };
  };
  ctx.weight_grads->take(work, between(compute, side), between(side, compute));
}

void SharedExperts::add_result(Context& ctx, const Tensor& to, Pass& pass) {
  if (stream) order(*stream, ctx.stream);
  if (to.numel() > 0) add(ctx.stream, to, to, pass.result);
  if (stream) order(ctx.stream, *stream);  // whose memory the result is
  pass.result = {};
  pass.in_use.clear();
}

}  // namespace ref5d
