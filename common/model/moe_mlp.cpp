#include "common/model/moe_mlp.h"

namespace ref5d {

MoeMlp::MoeMlp(const GptConfig& c, std::int64_t layer)
    : router(c, layer),
      experts(c, layer),
      shared(c.moe.shared_experts > 0 ? std::make_unique<SharedExperts>(c, layer) : nullptr),
      dispatcher(std::make_unique<LocalDispatcher>(c.moe)),
      layer_(layer) {}

std::vector<std::shared_ptr<Parameter>> MoeMlp::parameters() const {
  std::vector<std::shared_ptr<Parameter>> all{router.weight};
  for (auto& p : experts.parameters()) all.push_back(std::move(p));
  if (!shared) return all;
  for (auto& p : shared->mlp.parameters()) all.push_back(std::move(p));
  return all;
}

std::vector<std::shared_ptr<Parameter>> MoeMlp::buffers() const {
  if (!router.bias) return {};
  return {router.bias};
}

Tensor MoeMlp::dispatch(Context& ctx, const Tensor& x, Saved& saved, std::any& state) {
  ctx.see_sub("sub", layer_, "mlp_in", x);
  const Tensor in = region->enter(ctx, x);
  saved.push("moe.in", region->keep(ctx, x, in));
  const Routing routing = router.route(ctx, in, saved);
  Pass pass{dispatcher->begin_dispatch(ctx, in, routing), nullptr, {}};
  if (shared) pass.shared = std::make_shared<SharedExperts::Pass>(), pass.x = shared_inside ? in : x;
  state = std::move(pass);
  return {};
}

void MoeMlp::begin_shared(Context& ctx, Pass& pass, bool backward) {
  if (!shared) return;
  if (backward) {
    shared->begin_backward(ctx, pass.x, *pass.shared);
  } else {
    shared->begin_forward(ctx, pass.x, *pass.shared);
  }
  pass.x = {};
}

Tensor MoeMlp::compute(Context& ctx, const Tensor&, Saved& saved, std::any& state) {
  auto& pass = std::any_cast<Pass&>(state);
  if (shared_meanwhile) begin_shared(ctx, pass, false);
  const ExpertRows rows = pass.trip->finish_dispatch(ctx);
  pass.trip->begin_combine(ctx, experts.forward(ctx, rows, saved));
  return {};
}

Tensor MoeMlp::combine(Context& ctx, const Tensor&, Saved& saved, std::any& state) {
  auto& pass = std::any_cast<Pass&>(state);
  Tensor y = pass.trip->finish_combine(ctx);
  if (!shared_meanwhile) begin_shared(ctx, pass, false);
  if (shared && shared_inside) shared->finish_forward(ctx, y, *pass.shared);
  y = region->leave(ctx, y);
  if (shared && !shared_inside) shared->finish_forward(ctx, y, *pass.shared);
  ctx.see_sub("sub", layer_, "mlp_out", y);
  saved.push("moe.pass", std::move(pass));
  return y;
}

Tensor MoeMlp::combine_backward(Context& ctx, const Tensor& dy, Saved& saved, std::any& state) {
  ctx.see_sub("sub_grad", layer_, "mlp_out", dy);
  auto pass = saved.pop<Pass>("moe.pass");
  const Tensor d = region->leave_backward(ctx, dy);
  pass.trip->begin_combine_backward(ctx, d);
  pass.x = shared_inside ? d : dy;
  if (shared_meanwhile) begin_shared(ctx, pass, true);
  state = std::move(pass);
  return {};
}

Tensor MoeMlp::compute_backward(Context& ctx, const Tensor&, Saved& saved, std::any& state) {
  const auto& pass = std::any_cast<Pass&>(state);
  const Tensor dout = pass.trip->finish_combine_backward(ctx);
  pass.trip->begin_dispatch_backward(ctx, experts.backward(ctx, dout, saved));
  ctx.weight_grads->run_ready();
  return {};
}

Tensor MoeMlp::dispatch_backward(Context& ctx, const Tensor&, Saved& saved, std::any& state) {
  auto& pass = std::any_cast<Pass&>(state);
  const TokenTrip::Gradients g = pass.trip->finish_dispatch_backward(ctx);
  if (!shared_meanwhile) begin_shared(ctx, pass, true);
  const Tensor dlogits = router.backward_input(ctx, g.dx, g.dweights, saved);
  const PendingTensor restoring = region->begin_restore(ctx, saved.pop("moe.in"));
  if (shared && shared_inside) shared->finish_backward(ctx, g.dx, *pass.shared);
  const Tensor in = restoring(ctx);
  const PendingTensor entering = region->begin_enter_backward(ctx, g.dx);
  router.backward_weight(ctx, in, dlogits);
  ctx.weight_grads->run_ready();
  Tensor dx = entering(ctx);
  if (shared && !shared_inside) shared->finish_backward(ctx, dx, *pass.shared);
  ctx.see_sub("sub_grad", layer_, "mlp_in", dx);
  return dx;
}

}  // namespace ref5d
