#include "common/model/config.h"

#include <cmath>
#include <map>

#include "common/device/error.h"

namespace ref5d {
namespace {

GptConfig llama(std::string name, std::int64_t vocab, std::int64_t hidden, std::int64_t layers, std::int64_t heads,
                std::int64_t kv_heads, std::int64_t ffn, std::int64_t seq, double theta = 10000) {
  GptConfig c;
  c.preset = std::move(name);
  c.vocab = vocab;
  c.hidden = hidden;
  c.layers = layers;
  c.heads = heads;
  c.kv_heads = kv_heads;
  c.ffn = ffn;
  c.seq = seq;
  c.rope_theta = theta;
  return c;
}

GptConfig gpt2(std::string name, std::int64_t vocab, std::int64_t hidden, std::int64_t layers, std::int64_t heads,
               std::int64_t ffn, std::int64_t seq) {
  GptConfig c = llama(std::move(name), vocab, hidden, layers, heads, heads, ffn, seq);
  c.family = Family::kGpt2;
  c.norm = NormKind::kLayer;
  c.position = PositionKind::kLearned;
  c.mlp = MlpKind::kGelu;
  c.biases = true;
  c.tied = true;
  return c;
}

GptConfig mixtral(std::string name, std::int64_t experts, std::int64_t top_k, GptConfig c) {
  c.preset = std::move(name);
  c.family = Family::kMixtral;
  c.moe.experts = experts;
  c.moe.top_k = top_k;
  c.moe.aux_coefficient = 0.02;
  return c;
}

// With the balance of DeepSeek-V3: a correction bias that the load moves, and a small loss for each sequence beside it.
GptConfig deepseek(std::string name, std::int64_t experts, std::int64_t top_k, std::int64_t groups, std::int64_t top_groups,
                   double routed_scale, GptConfig c) {
  c.preset = std::move(name);
  c.family = Family::kDeepseek;
  c.moe = {.experts = experts,
           .top_k = top_k,
           .shared_experts = 1,
           .score = ScoreKind::kSigmoid,
           .renormalise = true,
           .routed_scale = routed_scale,
           .groups = groups,
           .top_groups = top_groups,
           .correction_bias = true,
           .aux_coefficient = 0.0001,
           .aux_kind = AuxKind::kSequence,
           .z_coefficient = 0,
           .bias_speed = 0.001,
           .capacity_factor = 0,
           .pad_to_capacity = false};
  return c;
}

const std::map<std::string, GptConfig>& presets() {
  static const auto* const kPresets = [] {
    auto* m = new std::map<std::string, GptConfig>;
    auto put = [m](GptConfig c) { (*m)[c.preset] = std::move(c); };
    put(llama("tiny", 256, 64, 4, 8, 4, 192, 64));
    put(gpt2("tiny-gpt2", 256, 64, 4, 8, 256, 64));
    put(mixtral("tiny-mixtral", 8, 2, llama("", 256, 64, 4, 8, 4, 96, 64)));
    put(deepseek("tiny-deepseek", 8, 2, 4, 2, 2.5, llama("", 256, 64, 4, 8, 4, 96, 64)));
    put(llama("bench", 256, 256, 4, 8, 4, 688, 256));
    put(gpt2("gpt2-124m", 50257, 768, 12, 12, 3072, 1024));
    put(gpt2("gpt2-355m", 50257, 1024, 24, 16, 4096, 1024));
    put(gpt2("gpt2-1.5b", 50257, 1600, 48, 25, 6400, 1024));
    put(llama("llama-1b", 128256, 2048, 16, 32, 8, 8192, 4096, 500000));
    (*m)["llama-1b"].tied = true;
    put(llama("llama-3b", 128256, 3072, 28, 24, 8, 8192, 4096, 500000));
    (*m)["llama-3b"].tied = true;
    put(llama("llama-8b", 128256, 4096, 32, 32, 8, 14336, 8192, 500000));
    put(llama("llama-70b", 128256, 8192, 80, 64, 8, 28672, 8192, 500000));
    put(mixtral("mixtral-8x7b", 8, 2, llama("", 32000, 4096, 32, 32, 8, 14336, 4096, 1000000)));
    return m;
  }();
  return *kPresets;
}

}  // namespace

std::int64_t MoeConfig::capacity(std::int64_t tokens) const {
  const double rows = capacity_factor * static_cast<double>(top_k * tokens) / static_cast<double>(experts);
  const double nearest = std::round(rows);
  return static_cast<std::int64_t>(std::abs(rows - nearest) < 1e-12 * rows ? nearest : std::ceil(rows));
}

namespace {

std::int64_t attention_matrices(const GptConfig& c) {
  return c.hidden * c.head_dim() * (c.heads + 2 * c.kv_heads) + c.heads * c.head_dim() * c.hidden;
}

// Of the layer's MLP, or of its router and so many routed experts.
std::int64_t mlp_matrices(const GptConfig& c, std::int64_t routed_experts) {
  const std::int64_t one = (c.mlp == MlpKind::kSwiglu ? 3 : 2) * c.hidden * c.ffn;
  return c.has_experts() ? (routed_experts + c.moe.shared_experts) * one + c.moe.experts * c.hidden : one;
}

}  // namespace

std::int64_t GptConfig::matmul_parameter_count() const {
  return layers * (attention_matrices(*this) + mlp_matrices(*this, moe.top_k)) + vocab * hidden;  // the head
}

std::int64_t GptConfig::parameter_count() const {
  const std::int64_t d = head_dim(), norm_size = norm == NormKind::kLayer ? 2 * hidden : hidden;
  std::int64_t block = attention_matrices(*this) + mlp_matrices(*this, moe.experts) + 2 * norm_size + (qk_norm ? 2 * d : 0);
  if (biases) block += d * (heads + 2 * kv_heads) + hidden + (mlp == MlpKind::kSwiglu ? 2 * ffn : ffn) + hidden;
  return layers * block + norm_size + (tied ? 1 : 2) * vocab * hidden + (position == PositionKind::kLearned ? seq * hidden : 0);
}

double GptConfig::flops_per_token(bool causal_half) const {
  const auto attention = 12.0 * static_cast<double>(layers) * static_cast<double>(hidden) * static_cast<double>(seq);
  return 6.0 * static_cast<double>(matmul_parameter_count()) + (causal_half ? attention / 2 : attention);
}

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const auto& [name, config] : presets()) names.push_back(name);
  return names;
}

GptConfig preset(const std::string& name) {
  const auto it = presets().find(name);
  if (it != presets().end()) return it->second;
  std::string known;
  for (const auto& n : preset_names()) known += (known.empty() ? "" : ", ") + n;
  throw InputError("--model " + name + " is not a preset; use one of: " + known);
}

namespace {

void validate_experts(const GptConfig& c) {
  const MoeConfig& m = c.moe;
  auto fail = [](const std::string& message) { throw InputError(message); };
  auto n = [](std::int64_t v) { return std::to_string(v); };
  if (c.family != Family::kMixtral && c.family != Family::kDeepseek)
    fail("--experts is for models with experts; use --model tiny-mixtral or tiny-deepseek");
  if (c.mlp != MlpKind::kSwiglu || c.biases) fail("experts are SwiGLU without biases; leave out --mlp gelu and --biases");
  if (m.groups < 1 || m.experts % m.groups != 0)
    fail("--experts " + n(m.experts) + " is not divisible by --groups " + n(m.groups) + "; groups of experts are equal");
  if (m.top_groups < 1 || m.top_groups > m.groups)
    fail("--top-groups " + n(m.top_groups) + " must be from 1 to --groups " + n(m.groups));
  const std::int64_t reachable = m.top_groups * (m.experts / m.groups);
  if (m.top_k < 1 || m.top_k > reachable) {
    fail("--top-k " + n(m.top_k) +
         (reachable == 1 ? " must be 1: there is one expert" : " must be from 1 to the " + n(reachable) + " experts") +
         " that a token can use" + (m.groups > 1 ? " in --top-groups " + n(m.top_groups) + " of --groups " + n(m.groups) : ""));
  }
  if (m.shared_experts > 0 && c.family == Family::kMixtral)
    fail("--shared-experts is for tiny-deepseek; Mixtral's names have no place for them");
  if (m.correction_bias && c.family == Family::kMixtral)
    fail("--correction-bias is for tiny-deepseek; Mixtral's names have no place for it");
  if (m.bias_speed != 0 && !m.correction_bias) fail("--bias-speed moves a bias that the router has not; use --correction-bias");
  if (m.pad_to_capacity && m.capacity_factor == 0) fail("--pad-to-capacity needs a --capacity-factor to pad to");
}

}  // namespace

void validate(const GptConfig& c) {
  auto fail = [](const std::string& message) { throw InputError(message); };
  auto n = [](std::int64_t v) { return std::to_string(v); };
  struct {
    const char* flag;
    std::int64_t value;
  } const positive[] = {{"--vocab", c.vocab},       {"--hidden", c.hidden}, {"--layers", c.layers}, {"--heads", c.heads},
                        {"--kv-heads", c.kv_heads}, {"--ffn", c.ffn},       {"--seq", c.seq}};
  for (const auto& [flag, value] : positive) {
    if (value < 1) fail(std::string(flag) + " " + n(value) + " must be at least 1");
  }
  if (c.hidden % c.heads != 0)
    fail("--hidden " + n(c.hidden) + " is not divisible by --heads " + n(c.heads) +
         "; each head needs hidden / heads channels");
  if (c.heads % c.kv_heads != 0) {
    fail("--heads " + n(c.heads) + " is not divisible by --kv-heads " + n(c.kv_heads) +
         "; every kv head serves the same number of query heads");
  }
  if (c.family == Family::kGpt2 && c.heads != c.kv_heads)
    fail("a GPT-2 model has as many kv heads as heads; use --kv-heads " + n(c.heads));
  if (c.family == Family::kGpt2 && c.qk_norm) fail("--qk-norm is for Llama-like models; GPT-2's names have no place for it");
  if (c.family == Family::kGpt2 && c.mlp == MlpKind::kSwiglu)
    fail("--mlp swiglu is for Llama-like models; GPT-2's names have no place for the gate");
  if (c.position == PositionKind::kRope && c.head_dim() % 2 != 0) {
    fail("the head dim " + n(c.head_dim()) + " (hidden / heads) must be even: RoPE turns pairs of channels");
  }
  if (c.head_dim() > 256) fail("the head dim " + n(c.head_dim()) + " (hidden / heads) is beyond 256; use more heads");
  const bool named_for_experts = c.family == Family::kMixtral || c.family == Family::kDeepseek;
  if (c.has_experts() || c.moe.experts < 0) {
    validate_experts(c);
  } else if (named_for_experts) {
    fail("--model " + c.preset + " needs --experts of at least 1; a dense model is tiny");
  }
  if (c.dropout < 0 || c.dropout >= 1) fail("--dropout must be at least 0 and less than 1");
}

}  // namespace ref5d
