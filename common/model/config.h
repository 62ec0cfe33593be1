// What a tiny (or not so tiny) GPT consists of, and the named presets.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/kernels/router.h"

namespace ref5d {

enum class NormKind { kRms, kLayer };
enum class PositionKind { kRope, kLearned };
enum class MlpKind { kSwiglu, kGelu };
// Whose names and storage the parameters have: Llama's (separate projections, [out, in]) or GPT-2's (packed qkv, [in, out]).
// Mixtral and DeepSeek are Llama with other names for the experts.
enum class Family { kLlama, kGpt2, kMixtral, kDeepseek };
// What an auxiliary loss keeps even: the load of a whole micro-batch, or of each document in it.
enum class AuxKind { kMicroBatch, kSequence };

// As flags, reports and checkpoints spell them.
[[nodiscard]] constexpr const char* kind_name(NormKind k) { return k == NormKind::kLayer ? "layernorm" : "rmsnorm"; }
[[nodiscard]] constexpr const char* kind_name(PositionKind k) { return k == PositionKind::kLearned ? "learned" : "rope"; }
[[nodiscard]] constexpr const char* kind_name(MlpKind k) { return k == MlpKind::kGelu ? "gelu" : "swiglu"; }
[[nodiscard]] constexpr const char* kind_name(ScoreKind k) { return k == ScoreKind::kSigmoid ? "sigmoid" : "softmax"; }
[[nodiscard]] constexpr const char* kind_name(AuxKind k) { return k == AuxKind::kSequence ? "sequence" : "micro-batch"; }

// A mixture of experts in place of every MLP: E experts of ffn columns each, of which a token uses top_k.
struct MoeConfig {
  std::int64_t experts = 0;  // 0: a dense model
  std::int64_t top_k = 2;
  std::int64_t shared_experts = 0;  // as one MLP of shared_experts x ffn columns, which every token uses
  ScoreKind score = ScoreKind::kSoftmax;
  bool renormalise = true;                  // the weights of a token's experts are divided by their sum,
  double routed_scale = 1;                  // and multiplied by this
  std::int64_t groups = 1, top_groups = 1;  // group-limited choice: a token's experts are in top_groups of the groups
  bool correction_bias = false;             // added to scores for the choice alone, and moved by load

  // What keeps the load even. Coefficients of 0 switch a loss off.
  double aux_coefficient = 0;  // of the balance loss,
  AuxKind aux_kind = AuxKind::kMicroBatch;
  double z_coefficient = 0;  // and of the z-loss
  double bias_speed = 0;     // by which a step moves each correction bias (DeepSeek-V3: 0.001)

  // An expert takes ceil(capacity_factor k T / E) of a micro-batch's T tokens; the choices beyond are dropped. 0: dropless.
  // A product that is whole but for the factor's rounding is not rounded up: 1.1 x 50 is 55.
  double capacity_factor = 0;
  bool pad_to_capacity = false;  // experts compute as many rows whatever they got, the rest of them zeros

  [[nodiscard]] std::int64_t capacity(std::int64_t tokens) const;
};

struct GptConfig {
  std::string preset = "tiny";
  Family family = Family::kLlama;
  std::int64_t vocab = 256, hidden = 64, layers = 4, heads = 8, kv_heads = 4, ffn = 192;
  std::int64_t seq = 64;  // training length; also the number of learned positions
  NormKind norm = NormKind::kRms;
  PositionKind position = PositionKind::kRope;
  MlpKind mlp = MlpKind::kSwiglu;
  bool qk_norm = false;  // an RMS norm over the head dim of q and k, before RoPE, shared by all heads
  bool biases = false;
  bool tied = false;  // the head's weight is the embedding's
  double dropout = 0;
  double norm_eps = 1e-5, rope_theta = 10000;
  MoeConfig moe;
  double init_std = 0.02;  // residual projections: init_std / sqrt(2 L), so that the residual stream does not grow with depth

  [[nodiscard]] std::int64_t head_dim() const { return hidden / heads; }
  [[nodiscard]] bool has_experts() const { return moe.experts > 0; }
  [[nodiscard]] bool has_aux_losses() const { return has_experts() && (moe.aux_coefficient != 0 || moe.z_coefficient != 0); }
  // Parameters in all (a correction bias is none), and without the embeddings' look-up those that a token is multiplied with:
  // of the experts its top_k, what 6N flops per token counts.
  [[nodiscard]] std::int64_t parameter_count() const;
  [[nodiscard]] std::int64_t matmul_parameter_count() const;
  // Flops of training on one token, 6 N + 12 L H S: the model's, so nothing that is computed again counts. PaLM's convention
  // (Chowdhery et al. 2022, appendix B) takes every pair of tokens for attention, as if nothing were masked, and mfu follows
  // it; causal_half takes the half that a causal mask leaves, 6 L H S.
  [[nodiscard]] double flops_per_token(bool causal_half) const;
};

[[nodiscard]] std::vector<std::string> preset_names();
// Throws InputError for an unknown name, listing the known ones.
[[nodiscard]] GptConfig preset(const std::string& name);
// Throws InputError with one line if the shape is impossible.
void validate(const GptConfig& config);

}  // namespace ref5d
