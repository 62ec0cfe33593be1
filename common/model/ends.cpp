#include "common/model/ends.h"

#include "common/kernels/cross_entropy.h"
#include "common/kernels/embedding.h"

namespace ref5d {

Embedding::Embedding(const GptConfig& c) {
  const bool gpt2 = c.family == Family::kGpt2;
  tokens = std::make_shared<Parameter>(gpt2 ? "transformer.wte.weight" : "model.embed_tokens.weight", Shape{c.vocab, c.hidden},
                                       Init::kNormal, c.init_std, true);
  if (c.position == PositionKind::kLearned) {
    positions = std::make_shared<Parameter>(gpt2 ? "transformer.wpe.weight" : "model.embed_positions.weight",
                                            Shape{c.seq, c.hidden}, Init::kNormal, c.init_std, true);
  }
}

std::vector<std::shared_ptr<Parameter>> Embedding::parameters() const {
  return positions ? std::vector{tokens, positions} : std::vector{tokens};
}

namespace {
// y = x under the embedding's dropout mask; y may be x.
void embedding_dropout(const Context& ctx, const Tensor& y, const Tensor& x) {
  const ResidualRows& rows = ctx.batch->residual;
  dropout(ctx.stream, y, x, rows.sample, rows.order, {ctx.dropout_seed, ctx.step, 0, DropoutSite::kEmbedding}, ctx.dropout);
}
}  // namespace

Tensor Embedding::forward(Context& ctx) {
  const MicroBatch& b = *ctx.batch;
  const Tensor found = ctx.activation({b.token_count(), tokens->global_shape[1]});
  embedding_forward(ctx.stream, found, tokens->weight, table_rows(ctx), false);
  Tensor x = region->leave(ctx, found);
  if (positions) embedding_forward(ctx.stream, x, positions->weight, b.residual.position, true);
  if (ctx.dropout > 0) embedding_dropout(ctx, x, x);
  return x;
}

void Embedding::backward(Context& ctx, const Tensor& dx_in) {
  Tensor dx = dx_in;
  if (ctx.dropout > 0) {
    dx = ctx.activation({dx_in.dim(0), dx_in.dim(1)});
    embedding_dropout(ctx, dx, dx_in);
  }
  Stream& stream = ctx.stream;
  auto queue = [&](const std::shared_ptr<Parameter>& table, const Tensor& dy, const Tensor& index) {
    auto work = [table, &stream, dy, index] {
      const Tensor dtable = table->begin_contribution(stream, true).tensor;
      embedding_backward(stream, dtable, dy, index);  // always adds
      table->end_contribution(stream);
    };
    ctx.weight_grads->add(std::move(work), {dy});
  };
  queue(tokens, region->leave_backward(ctx, dx), table_rows(ctx));
  if (positions) queue(positions, dx, ctx.batch->residual.position);
  ctx.weight_grads->run_ready();
}

Head::Head(const GptConfig& c, std::shared_ptr<Parameter> tied) {
  const bool gpt2 = c.family == Family::kGpt2;
  norm = std::make_unique<Norm>(gpt2 ? "transformer.ln_f" : "model.norm", c.hidden, c.norm, c.norm_eps);
  projection = std::make_unique<Linear>("lm_head", c.hidden, c.vocab, false, false, c.init_std, FlopsKind::kHead);
  if (tied) {
    projection->weight = std::move(tied);
    ++projection->weight->uses;
  }
}

std::vector<std::shared_ptr<Parameter>> Head::parameters() const {
  std::vector<std::shared_ptr<Parameter>> all{norm->weight};
  if (norm->bias) all.push_back(norm->bias);
  append(all, projection);
  return all;
}

Tensor Head::logits(Context& ctx, const Tensor& x, Saved& saved) {
  const Tensor normed = norm->forward(ctx, x, saved);
  const Tensor in = region->enter(ctx, normed);
  saved.push("head.in", region->keep(ctx, normed, in));
  Tensor y = projection->multiply(ctx, in);
  ctx.see("logits", y);
  return y;
}

void Head::loss(Context& ctx, const Tensor& logits, Saved& saved) {
  const MicroBatch& b = *ctx.batch;
  const Tensor per_token = ctx.statistic({b.token_count()});
  if (ctx.fused) {  // the logits become their gradient
    cross_entropy(ctx.stream, logits, per_token, b.labels, b.loss_scale);
    saved.push("head.dlogits", logits);
  } else {
    const Tensor dlogits = ctx.activation(logits.shape());
    cross_entropy_unfused(ctx.stream, dlogits, ctx.activation(logits.shape()), per_token, logits, b.labels, b.loss_scale);
    saved.push("head.dlogits", dlogits);
  }
  add_loss(ctx.stream, ctx.loss_sum, per_token);
}

Tensor Head::backward(Context& ctx, Saved& saved) {
  const Tensor dlogits = saved.pop("head.dlogits");
  const PendingTensor restoring = region->begin_restore(ctx, saved.pop("head.in"));
  const Tensor d = ctx.activation({dlogits.dim(0), projection->in()});
  projection->backward_input(ctx, d, dlogits, false);
  const Tensor in = restoring(ctx);
  const PendingTensor entering = region->begin_enter_backward(ctx, d);
  projection->backward_weight(ctx, in, dlogits);
  ctx.weight_grads->run_ready();
  const Tensor dnormed = entering(ctx);
  Tensor dx = ctx.activation({dnormed.dim(0), dnormed.dim(1)});
  norm->backward(ctx, dx, dnormed, saved, false);
  ctx.weight_grads->run_ready();
  return dx;
}

}  // namespace ref5d
