#include "03_tensor_parallel/kept_activations.h"

#include "03_tensor_parallel/cut.h"
#include "common/device/device.h"

namespace ref5d::tensor_parallel {

LayerActivations layer_activations(const Options& o, const GptConfig& c, std::int64_t tokens, int ranks, int rank) {
  const auto element = static_cast<std::int64_t>(dtype_size(o.dtype));
  const auto statistic = static_cast<std::int64_t>(dtype_size(accumulator_of(o.dtype)));
  const std::int64_t residual = tokens * c.hidden * element;  // one array [T, H]
  // Mean (LayerNorm only) and 1/deviation of every token.
  const std::int64_t norm_statistics = tokens * statistic * (c.norm == NormKind::kLayer ? 2 : 1);
  const Heads heads = heads_of(c, ranks, rank);
  const std::int64_t query = heads.query.size(), kv = heads.kv.size();
  const std::int64_t columns = share_of(c.ffn, ranks, rank).size();

  LayerActivations a;
  a.whole = residual;  // the layer's output, which is the next one's input
  if (o.recompute == "full") return a;
  // The MLP: its norm's input, and the norm's output, which is its linears' input; then gate (SwiGLU), up and their activation.
  a.whole += 2 * residual + norm_statistics;
  a.cut += tokens * columns * (c.mlp == MlpKind::kSwiglu ? 3 : 2) * element;
  if (o.recompute == "selective") return a;
  // Attention: its norm's output (the input is the layer's, and counted there); q, k, v, its output, and a log-sum-exp per
  // head.
  a.whole += residual + norm_statistics;
  a.cut += tokens * (2 * query + 2 * kv) * c.head_dim() * element + tokens * query * statistic;
  // With qk_norm also q and k as they were before it, and 1/deviation of every head.
  if (c.qk_norm) a.cut += tokens * (query + kv) * (c.head_dim() * element + statistic);
  return a;
}

void ActivationMeter::after_forward(std::int64_t unit) {
  if (done_) return;
  const std::int64_t now = device().memory().current(MemoryCategory::kActivations);
  if (unit > 0 && unit <= layers_) {
    const std::int64_t added = now - before_;
    bytes_ = unit == 1 || bytes_ == added ? added : -1;
  }
  before_ = now;
  done_ = unit > layers_;
}

}  // namespace ref5d::tensor_parallel
