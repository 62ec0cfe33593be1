#include "common/model/block.h"

#include "common/kernels/elementwise.h"
#include "common/model/moe_mlp.h"

namespace ref5d {

namespace {
// While it lives, forward runs a second time.
class Recomputing {
 public:
  explicit Recomputing(Context& ctx) : ctx_(ctx) { ctx_.recomputing = true; }
  ~Recomputing() { ctx_.recomputing = false; }
  Recomputing(const Recomputing&) = delete;
  Recomputing& operator=(const Recomputing&) = delete;

 private:
  Context& ctx_;
};
}  // namespace

Block::Block(const GptConfig& c, std::int64_t layer) : layer_(layer) {
  const std::string name = (c.family == Family::kGpt2 ? "transformer.h." : "model.layers.") + std::to_string(layer) + ".";
  const bool gpt2 = c.family == Family::kGpt2;
  attention_norm = std::make_unique<Norm>(name + (gpt2 ? "ln_1" : "input_layernorm"), c.hidden, c.norm, c.norm_eps);
  mlp_norm = std::make_unique<Norm>(name + (gpt2 ? "ln_2" : "post_attention_layernorm"), c.hidden, c.norm, c.norm_eps);
  attention = std::make_unique<AttentionLayer>(c, layer);
  if (c.has_experts()) {
    mlp = std::make_unique<MoeMlp>(c, layer);
  } else {
    mlp = std::make_unique<DenseMlp>(c, layer);
  }
}

std::vector<std::shared_ptr<Parameter>> Block::parameters() const {
  std::vector<std::shared_ptr<Parameter>> all;
  auto add_norm = [&all](const std::unique_ptr<Norm>& norm) {
    if (!norm) return;
    all.push_back(norm->weight);
    if (norm->bias) all.push_back(norm->bias);
  };
  add_norm(attention_norm);
  for (const auto* linear : {&attention->qkv, &attention->q, &attention->k, &attention->v}) append(all, *linear);
  add_norm(attention->q_norm);
  add_norm(attention->k_norm);
  append(all, attention->out);
  add_norm(mlp_norm);
  for (auto& p : mlp->parameters()) all.push_back(std::move(p));
  return all;
}

void Block::residual_dropout(const Context& ctx, const Tensor& y, const Tensor& x, DropoutSite site) const {
  const ResidualRows& rows = ctx.batch->residual;
  const DropoutKey key{ctx.dropout_seed + (ctx.recomputing ? ctx.redraw_dropout : 0), ctx.step,
                       static_cast<std::uint32_t>(layer_), site};
  dropout(ctx.stream, y, x, rows.sample, rows.order, key, ctx.dropout);
}

Tensor Block::residual(Context& ctx, const Tensor& x, const Tensor& y, DropoutSite site) const {
  if (ctx.dropout > 0) residual_dropout(ctx, y, y, site);
  add(ctx.stream, y, x, y);
  return y;
}

Tensor Block::residual_backward(Context& ctx, const Tensor& dy, DropoutSite site) const {
  if (ctx.dropout == 0) return dy;
  Tensor masked = ctx.activation({dy.dim(0), dy.dim(1)});
  residual_dropout(ctx, masked, dy, site);
  return masked;
}

// Norm, projections and the attention core: what selective recomputation repeats.
Tensor Block::attention_forward_half(Context& ctx, const Tensor& x, Saved& saved) {
  const Tensor normed = attention_norm->forward(ctx, x, saved);
  ctx.see_sub("sub", layer_, "attn_norm", normed);
  Tensor o = attention->attend(ctx, normed, saved);
  saved.push("attention.o", o);
  return o;
}

void Block::run_phase(Phase phase, Context& ctx, BlockFlow& flow, Saved& saved) {
  switch (phase) {
    case Phase::kAttention: {
      const bool selective = ctx.recompute == Recompute::kSelective;
      Saved dropped;
      const Tensor o = attention_forward_half(ctx, flow.x, selective ? dropped : saved);
      if (selective) saved.push("attention.x", flow.x);
      flow.x = residual(ctx, flow.x, attention->project(ctx, o), DropoutSite::kAttention);
      break;
    }
    case Phase::kDispatch: {
      const Tensor normed = mlp_norm->forward(ctx, flow.x, saved);
      ctx.see_sub("sub", layer_, "mlp_norm", normed);
      flow.inner = mlp->dispatch(ctx, normed, saved, flow.mlp_state);
      break;
    }
    case Phase::kExperts: flow.inner = mlp->compute(ctx, flow.inner, saved, flow.mlp_state); break;
    case Phase::kCombine:
      flow.x = residual(ctx, flow.x, mlp->combine(ctx, flow.inner, saved, flow.mlp_state), DropoutSite::kMlp);
      flow.inner = {};
      flow.mlp_state.reset();
      break;
  }
}

void Block::run_phase_backward(Phase phase, Context& ctx, BlockFlow& flow, Saved& saved) {
  switch (phase) {
    case Phase::kCombine:
      flow.inner = mlp->combine_backward(ctx, residual_backward(ctx, flow.x, DropoutSite::kMlp), saved, flow.mlp_state);
      break;
    case Phase::kExperts: flow.inner = mlp->compute_backward(ctx, flow.inner, saved, flow.mlp_state); break;
    case Phase::kDispatch: {
      const Tensor d = mlp->dispatch_backward(ctx, flow.inner, saved, flow.mlp_state);
      ctx.see_sub("sub_grad", layer_, "mlp_norm", d);
      // The residual path passes dy on unchanged; the sublayer's gradient is added to it. A new tensor: the old one may still
      // be a weight gradient's dy.
      const Tensor dx = ctx.activation({d.dim(0), d.dim(1)});
      mlp_norm->backward(ctx, dx, d, saved, false);
      ctx.weight_grads->run_ready();
      add(ctx.stream, dx, dx, flow.x);
      flow.x = dx;
      flow.inner = {};
      flow.mlp_state.reset();
      break;
    }
    case Phase::kAttention: {
      Saved again;
      if (ctx.recompute == Recompute::kSelective) {
        const Recomputing scope(ctx);
        (void)attention_forward_half(ctx, saved.pop("attention.x"), again);
      }
      Saved& kept = ctx.recompute == Recompute::kSelective ? again : saved;
      const Tensor o = kept.pop("attention.o");
      const Tensor dout = attention->project_backward(ctx, residual_backward(ctx, flow.x, DropoutSite::kAttention), o);
      const Tensor d = attention->attend_backward(ctx, dout, kept);
      ctx.see_sub("sub_grad", layer_, "attn_norm", d);
      const Tensor dx = ctx.activation({d.dim(0), d.dim(1)});
      attention_norm->backward(ctx, dx, d, kept, false);
      ctx.weight_grads->run_ready();
      add(ctx.stream, dx, dx, flow.x);
      flow.x = dx;
      break;
    }
  }
}

// Full recomputation keeps the block's input and drops the rest; backward runs the forward again first.
void Block::forward_phase(Phase phase, Context& ctx, BlockFlow& flow, Saved& saved) {
  if (ctx.recompute != Recompute::kFull) return run_phase(phase, ctx, flow, saved);
  if (phase == kPhases.front()) saved.push("block.x", flow.x);
  run_phase(phase, ctx, flow, flow.own);
  if (phase == kPhases.back()) flow.own = {};
}

void Block::backward_phase(Phase phase, Context& ctx, BlockFlow& flow, Saved& saved) {
  if (ctx.recompute != Recompute::kFull) return run_phase_backward(phase, ctx, flow, saved);
  if (phase == kPhases.back()) {
    BlockFlow again{.x = saved.pop("block.x")};
    const Recomputing scope(ctx);
    for (Phase p : kPhases) run_phase(p, ctx, again, flow.own);
  }
  run_phase_backward(phase, ctx, flow, flow.own);
}

Tensor Block::forward(Context& ctx, const Tensor& x, Saved& saved) {
  BlockFlow flow{.x = x};
  for (Phase p : kPhases) forward_phase(p, ctx, flow, saved);
  return flow.x;
}

Tensor Block::backward(Context& ctx, const Tensor& dy, Saved& saved) {
  BlockFlow flow{.x = dy};
  for (auto p = kPhases.rbegin(); p != kPhases.rend(); ++p) backward_phase(*p, ctx, flow, saved);
  return flow.x;
}

}  // namespace ref5d
