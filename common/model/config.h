// What a tiny (or not so tiny) GPT consists of, and the named presets.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ref5d {

enum class NormKind { kRms, kLayer };
enum class PositionKind { kRope, kLearned };
enum class MlpKind { kSwiglu, kGelu };
// Whose names and storage the parameters have: Llama's (separate projections, [out, in]) or GPT-2's (packed qkv, [in, out]).
enum class Family { kLlama, kGpt2 };

// As flags, reports and checkpoints spell them.
[[nodiscard]] constexpr const char* kind_name(NormKind k) { return k == NormKind::kLayer ? "layernorm" : "rmsnorm"; }
[[nodiscard]] constexpr const char* kind_name(PositionKind k) { return k == PositionKind::kLearned ? "learned" : "rope"; }
[[nodiscard]] constexpr const char* kind_name(MlpKind k) { return k == MlpKind::kGelu ? "gelu" : "swiglu"; }

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
  double init_std = 0.02;  // residual projections: init_std / sqrt(2 L), so that the residual stream does not grow with depth

  [[nodiscard]] std::int64_t head_dim() const { return hidden / heads; }
  // Parameters in all, and without the embeddings' look-up (what 6N flops per token counts).
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
