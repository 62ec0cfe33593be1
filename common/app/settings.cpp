#include "common/app/settings.h"

#include "common/device/error.h"

namespace ref5d {

GptConfig model_config(const Options& o) {
  GptConfig c = preset(o.model);
  auto set = [](auto& field, const auto& given) {
    if (given) field = *given;
  };
  set(c.layers, o.layers);
  set(c.hidden, o.hidden);
  set(c.heads, o.heads);
  set(c.kv_heads, o.kv_heads);
  // GPT-2 has no grouped heads: its kv heads follow its heads.
  if (c.family == Family::kGpt2 && o.heads && !o.kv_heads) c.kv_heads = c.heads;
  set(c.ffn, o.ffn);
  set(c.vocab, o.vocab);
  set(c.seq, o.seq);
  set(c.dropout, o.dropout);
  set(c.qk_norm, o.qk_norm);
  if (c.qk_norm && c.family == Family::kGpt2)
    throw InputError("--qk-norm is for Llama-like models; GPT-2's names have no place for it");
  validate(c);
  return c;
}

DatasetOptions dataset_options(const Options& o, const GptConfig& model) {
  return {o.data, o.documents, model.seq, model.vocab, static_cast<std::uint64_t>(o.seed)};
}

TrainerOptions trainer_options(const Options& o, const GptConfig& model) {
  TrainerOptions t;
  t.model = model;
  t.storage.dtype = o.dtype;
  t.storage.seed = static_cast<std::uint64_t>(o.seed);
  t.storage.bf16_gradients = o.fused_grad_accum ? GradientMode::kFused : GradientMode::kSeparate;
  t.storage.fp32_gradient_sum = o.fp32_grads;
  t.optimizer.adamw.lr = o.lr;
  t.optimizer.adamw.beta1 = o.beta1;
  t.optimizer.adamw.beta2 = o.beta2;
  t.optimizer.adamw.eps = o.eps;
  t.optimizer.adamw.weight_decay = o.weight_decay;
  t.optimizer.clip = o.clip;
  t.micro_batch = o.micro_batch;
  t.global_batch = o.micro_batch * o.grad_accum;
  t.gemm = o.gemm == "hand" ? GemmKind::kHand : o.gemm == "tensor-core" ? GemmKind::kTensorCore : GemmKind::kBlas;
  t.attention = o.attention == "naive" ? AttentionKind::kNaive : AttentionKind::kFlash;
  t.recompute = o.recompute == "full"        ? Recompute::kFull
                : o.recompute == "selective" ? Recompute::kSelective
                                             : Recompute::kNone;
  t.load = o.load;
  return t;
}

}  // namespace ref5d
