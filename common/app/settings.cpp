#include "common/app/settings.h"

#include <fmt/core.h>

#include <limits>

#include "common/device/device.h"
#include "common/device/error.h"
#include "common/train/host_memory.h"

namespace ref5d {

namespace {

// A lower bound of what a step holds: weights, gradients and moments, and the logits of one micro-batch. Beyond the machine's
// memory the system would end the process, or others, without a word.
void check_memory(const Options& o, const GptConfig& model, bool for_baseline) {
  const auto size = static_cast<double>(dtype_size(o.dtype)), wide = static_cast<double>(dtype_size(accumulator_of(o.dtype)));
  const double state = static_cast<double>(model.parameter_count()) * (2 * size + 2 * wide);
  const double logits =
      static_cast<double>(o.micro_batch) * static_cast<double>(model.seq) * static_cast<double>(model.vocab) * size;
  const double memory = physical_memory_bytes();
  if (state + logits <= memory) return;
  throw InputError(fmt::format(
      "this model and micro-batch need at least {:.1f} GiB{} (weights, gradients and moments {:.1f}, logits {:.1f}), "
      "the machine has {:.1f}; use a smaller --model or --micro-batch{}",
      (state + logits) / 0x1p30, for_baseline ? " for the single-device baseline" : "", state / 0x1p30, logits / 0x1p30,
      memory / 0x1p30, for_baseline ? ", or --no-verify" : ""));
}

void check_batch(const Options& o, const GptConfig& model, std::int64_t replicas) {
  const double tokens = static_cast<double>(o.micro_batch) * static_cast<double>(o.grad_accum) *
                        static_cast<double>(model.seq) * static_cast<double>(replicas);
  if (tokens <= std::numeric_limits<std::int32_t>::max()) return;
  const std::string times = replicas == 1 ? "" : fmt::format(" x {} replicas", replicas);
  throw InputError(fmt::format("--micro-batch {} x --grad-accum {} x --seq {}{} are {:.3g} tokens per step; use less than 2^31",
                               o.micro_batch, o.grad_accum, model.seq, times, tokens));
}

void check_gemm(const Options& o) {
  if (o.gemm != "tensor-core") return;
  if (Device::mode() != "cuda" || o.dtype != Dtype::kBf16)
    throw InputError("--gemm tensor-core needs MODE=cuda and --dtype bf16; use blas or hand");
}

template <typename Kind>
void set_kind(Kind& field, const std::optional<std::string>& given, std::initializer_list<Kind> kinds) {
  for (Kind k : kinds)
    if (given && *given == kind_name(k)) field = k;
}

void set(auto& field, const auto& given) {
  if (given) field = *given;
}

void set_experts(MoeConfig& c, const MoeOptions& o) {
  set(c.experts, o.experts);
  set(c.top_k, o.top_k);
  set(c.shared_experts, o.shared_experts);
  set_kind(c.score, o.score, {ScoreKind::kSoftmax, ScoreKind::kSigmoid});
  set(c.renormalise, o.renormalise);
  set(c.routed_scale, o.routed_scale);
  set(c.groups, o.groups);
  set(c.top_groups, o.top_groups);
  set(c.correction_bias, o.correction_bias);
  set(c.aux_coefficient, o.aux_coefficient);
  set_kind(c.aux_kind, o.aux_kind, {AuxKind::kMicroBatch, AuxKind::kSequence});
  set(c.z_coefficient, o.z_coefficient);
  set(c.bias_speed, o.bias_speed);
  set(c.capacity_factor, o.capacity_factor);
  set(c.pad_to_capacity, o.pad_to_capacity);
}

}  // namespace

GptConfig model_config(const Options& o) {
  GptConfig c = preset(o.model);
  if (c.has_experts() && !o.allows_experts)
    throw InputError("--model " + o.model + " has experts, which are lesson 06's; run 06_expert_parallel, or use --model tiny");
  set(c.layers, o.layers);
  set(c.hidden, o.hidden);
  set(c.heads, o.heads);
  set(c.kv_heads, o.kv_heads);
  // GPT-2 has no grouped heads: its kv heads follow its heads.
  if (c.family == Family::kGpt2 && o.heads && !o.kv_heads) c.kv_heads = c.heads;
  set(c.ffn, o.ffn);
  set(c.vocab, o.vocab);
  set(c.seq, o.seq);
  set_kind(c.norm, o.norm, {NormKind::kRms, NormKind::kLayer});
  set_kind(c.position, o.position, {PositionKind::kRope, PositionKind::kLearned});
  set_kind(c.mlp, o.mlp, {MlpKind::kSwiglu, MlpKind::kGelu});
  set(c.qk_norm, o.qk_norm);
  set(c.biases, o.biases);
  set(c.tied, o.tied);
  set(c.norm_eps, o.norm_eps);
  set(c.rope_theta, o.rope_theta);
  set(c.init_std, o.init_std);
  set(c.dropout, o.dropout);
  set_experts(c.moe, o.moe);
  validate(c);
  if (o.sample > 0 && c.vocab > 256)
    throw InputError("--sample prints tokens as bytes and needs a byte-level model; use --vocab 256 or less");
  return c;
}

DatasetOptions dataset_options(const Options& o, const GptConfig& model) {
  return {o.data, o.documents, model.seq, model.vocab, static_cast<std::uint64_t>(o.seed)};
}

TrainerOptions trainer_options(const Options& o, const GptConfig& model, std::int64_t replicas, std::int64_t ranks) {
  check_gemm(o);
  check_batch(o, model, replicas);
  // What the ranks hold of a model the lesson knows; the baseline holds all of it.
  if (Device::mode() != "cuda" && (ranks == 1 || o.verify)) check_memory(o, model, ranks > 1);
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
  t.global_batch = o.micro_batch * o.grad_accum * replicas;
  t.gemm = o.gemm == "hand" ? GemmKind::kHand : o.gemm == "tensor-core" ? GemmKind::kTensorCore : GemmKind::kBlas;
  t.attention = o.attention == "naive" ? AttentionKind::kNaive : AttentionKind::kFlash;
  t.recompute = o.recompute == "full"        ? Recompute::kFull
                : o.recompute == "selective" ? Recompute::kSelective
                                             : Recompute::kNone;
  t.load = o.load;
  return t;
}

}  // namespace ref5d
