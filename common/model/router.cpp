#include "common/model/router.h"

#include "common/device/device.h"
#include "common/kernels/elementwise.h"
#include "common/kernels/expert_rows.h"
#include "common/kernels/row_sums.h"
#include "common/model/route_log.h"

namespace ref5d {

namespace {

// Tensor cores have no fp32.
GemmKind wide_kind(GemmKind kind) { return kind == GemmKind::kHand ? GemmKind::kHand : GemmKind::kBlas; }

}  // namespace

Tensor RouterScope::within_capacity(Context& ctx, const Tensor& chosen, std::int64_t experts, std::int64_t capacity) const {
  const Tensor order = ctx.integers({chosen.numel()}), counts = ctx.integers({experts});
  sort_slots(ctx.stream, order, counts, chosen);
  Tensor kept = ctx.integers(chosen.shape());
  drop_beyond_capacity(ctx.stream, kept, chosen, order, capacity);
  return kept;
}

Router::Router(const GptConfig& c, std::int64_t layer) : moe_(c.moe), layer_(layer) {
  const std::string name =
      "model.layers." + std::to_string(layer) + (c.family == Family::kMixtral ? ".block_sparse_moe.gate." : ".mlp.gate.");
  weight = std::make_shared<Parameter>(name + "weight", Shape{c.moe.experts, c.hidden}, Init::kNormal, c.init_std, true);
  if (c.moe.correction_bias)
    bias = std::make_shared<Parameter>(name + "e_score_correction_bias", Shape{c.moe.experts}, Init::kZero, 0.0, false);
}

Routing Router::route(Context& ctx, const Tensor& x, Saved& saved) {
  const std::int64_t rows = x.dim(0), experts = moe_.experts, k = moe_.top_k;
  const Tensor logits = ctx.statistic({rows, experts}), scores = ctx.statistic({rows, experts});
  gemm(ctx.stream, ctx.gemm, Transpose::kNo, Transpose::kYes, 1.0, x, weight->weight, 0.0, logits);
  device().flops().add(FlopsKind::kBlockLinear, gemm_flops(rows, experts, x.dim(1)));
  router_scores(ctx.stream, scores, logits, moe_.score);

  Tensor chosen = ctx.integers({rows, k});
  const ChoiceRule rule{static_cast<int>(k), static_cast<int>(moe_.groups), static_cast<int>(moe_.top_groups)};
  choose_experts(ctx.stream, chosen, scores, bias ? bias->weight : Tensor(), rule);
  if (ctx.routes != nullptr) chosen = ctx.routes->pass(ctx, scope->rows(*ctx.batch), layer_, chosen);
  const Tensor weights = ctx.statistic({rows, k});
  routing_weights(ctx.stream, weights, scores, chosen, moe_.renormalise, moe_.routed_scale);

  const Tensor balance_gradient = losses(ctx, logits, scores, chosen);
  saved.push("router", Kept{logits, scores, chosen, balance_gradient});
  ctx.see_sub("sub", layer_, "router_scores", scores);
  ctx.see_sub("sub", layer_, "experts", chosen);
  Tensor kept = chosen;
  if (moe_.capacity_factor != 0)
    kept = scope->within_capacity(ctx, chosen, experts, moe_.capacity(ctx.batch->balance.all_tokens));
  count_sent(ctx, scores, kept);
  return {kept, weights};
}

Tensor Router::load_row(const Context& ctx) const { return ctx.router_load.rows(layer_, layer_ + 1).view({3 * moe_.experts}); }

void Router::count_sent(Context& ctx, const Tensor& scores, const Tensor& kept) const {
  if (ctx.recomputing || !ctx.router_load) return;
  const Tensor load = Tensor::empty({1, 2, moe_.experts}, Dtype::kFp64, MemoryCategory::kWorkspace, ctx.stream);
  const Tensor one_sequence = Tensor::zeros({kept.dim(0)}, Dtype::kInt32, MemoryCategory::kWorkspace, ctx.stream);
  router_load(ctx.stream, load, scores, kept, one_sequence, moe_.score);
  const Tensor choices = load.view({2 * moe_.experts}).rows(0, moe_.experts).view({1, moe_.experts});
  add_row_sums(ctx.stream, load_row(ctx).rows(2 * moe_.experts, 3 * moe_.experts), choices, true);
}

// The z-loss is a mean over the micro-batch's tokens, without padding like the balance loss.
double Router::z_scale(const Context& ctx) const {
  const MicroBatch& b = *ctx.batch;
  if (moe_.z_coefficient == 0 || b.balance.tokens == 0) return 0;
  return moe_.z_coefficient * b.aux_loss_scale / static_cast<double>(b.balance.tokens);
}

// Counts the load, adds the losses, and returns the balance loss's gradient by the probabilities, if this rank adds it.
Tensor Router::losses(Context& ctx, const Tensor& logits, const Tensor& scores, const Tensor& chosen) {
  const MicroBatch& b = *ctx.batch;
  const std::int64_t experts = moe_.experts, sequences = b.balance.lengths.numel(), n = sequences * 2 * experts;
  const auto fp64 = [&](const Shape& shape) {
    return Tensor::empty(shape, Dtype::kFp64, MemoryCategory::kActivations, ctx.stream);
  };
  const Tensor sums = fp64({n + 1}), load = sums.rows(0, n), z = sums.rows(n, n + 1);
  router_load(ctx.stream, load.view({sequences, 2, experts}), scores, chosen, scope->rows(b).sequence, moe_.score);
  if (!ctx.recomputing && ctx.router_load)
    add_row_sums(ctx.stream, load_row(ctx).rows(0, 2 * experts), load.view({sequences, 2 * experts}), true);
  if (moe_.aux_coefficient == 0 && moe_.z_coefficient == 0) return {};

  router_z_sum(ctx.stream, z, logits, scope->rows(b).sequence);
  scope->sum(ctx, sums);
  Tensor gradient = ctx.statistic({sequences, experts});
  const Tensor loss = fp64({1});
  balance_loss(ctx.stream, loss, gradient, load.view({sequences, 2, experts}), b.balance.lengths, static_cast<int>(moe_.top_k),
               moe_.aux_coefficient * b.aux_loss_scale, 1.0);
  scale(ctx.stream, z, z_scale(ctx));
  if (scope->counts_losses()) {
    ctx.add_aux_loss(loss);
    ctx.add_aux_loss(z);
  }
  return scope->adds_loss_gradient() ? gradient : Tensor();
}

Tensor Router::backward_input(Context& ctx, const Tensor& dx, const Tensor& dweights, Saved& saved) {
  const Kept kept = saved.pop<Kept>("router");
  RouterGradient g{.kind = moe_.score,
                   .renormalise = moe_.renormalise,
                   .scale = moe_.routed_scale,
                   .logits = kept.logits,
                   .scores = kept.scores,
                   .chosen = kept.chosen,
                   .dweights = dweights,
                   .balance_gradient = kept.balance_gradient,
                   .sequence = scope->rows(*ctx.batch).sequence,
                   .z_scale = scope->adds_loss_gradient() ? z_scale(ctx) : 0};
  Tensor dlogits = ctx.statistic({dx.dim(0), moe_.experts});
  router_backward(ctx.stream, dlogits, g);
  ctx.see_sub("sub_grad", layer_, "router_logits", dlogits);

  device().flops().add(FlopsKind::kBlockLinear, gemm_flops(dx.dim(0), dx.dim(1), moe_.experts));
  if (dx.dtype() == dlogits.dtype()) {
    gemm(ctx.stream, ctx.gemm, Transpose::kNo, Transpose::kNo, 1.0, dlogits, weight->weight, 1.0, dx);
    return dlogits;
  }
  const Tensor wide = ctx.statistic(weight->weight.shape()), part = ctx.statistic({dx.dim(0), dx.dim(1)});
  convert(ctx.stream, wide, weight->weight);
  gemm(ctx.stream, wide_kind(ctx.gemm), Transpose::kNo, Transpose::kNo, 1.0, dlogits, wide, 0.0, part);
  scaled_add(ctx.stream, dx, part, 1.0);
  return dlogits;
}

void Router::backward_weight(Context& ctx, const Tensor& x, const Tensor& dlogits) const {
  Stream& stream = ctx.stream;
  auto work = [this, &stream, kind = ctx.gemm, x, dlogits] {
    const auto [dw, accumulate] = weight->begin_contribution(stream, x.dtype() != dlogits.dtype());
    device().flops().add(FlopsKind::kBlockLinear, gemm_flops(dlogits.dim(1), x.dim(1), x.dim(0)));
    if (x.dtype() == dlogits.dtype()) {
      gemm(stream, kind, Transpose::kYes, Transpose::kNo, 1.0, dlogits, x, accumulate ? 1.0 : 0.0, dw);
    } else {
      const auto fp32 = [&](const Shape& s) { return Tensor::empty(s, dlogits.dtype(), MemoryCategory::kWorkspace, stream); };
      const Tensor wide = fp32(x.shape()), sum = fp32(dw.shape());
      convert(stream, wide, x);
      gemm(stream, wide_kind(kind), Transpose::kYes, Transpose::kNo, 1.0, dlogits, wide, 0.0, sum);
      scaled_add(stream, dw, sum, 1.0);
    }
    weight->end_contribution(stream);
  };
  ctx.weight_grads->add(std::move(work), {x, dlogits});
}

}  // namespace ref5d
