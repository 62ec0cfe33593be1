#include "03_tensor_parallel/costs.h"

#include "03_tensor_parallel/cut.h"
#include "common/kernels/grad_norm.h"
#include "common/model/gpt.h"

namespace ref5d::tensor_parallel {

RankParameters parameters_of_rank(const GptConfig& c, int ranks, int rank) {
  const Heads heads = heads_of(c, ranks, rank);
  const std::int64_t H = c.hidden, D = c.head_dim(), query = heads.query.size() * D, kv = heads.kv.size() * D;
  const std::int64_t F = share_of(c.ffn, ranks, rank).size(), V = share_of(c.vocab, ranks, rank).size();
  const std::int64_t ups = c.mlp == MlpKind::kSwiglu ? 2 : 1, norm = (c.norm == NormKind::kLayer ? 2 : 1) * H;
  RankParameters p;
  p.projections = H * (query + 2 * kv);
  p.matrices = p.projections + query * H + ups * H * F + F * H;
  p.head = V * H;
  const std::int64_t biases = query + 2 * kv + H + ups * F + H;
  const std::int64_t layer = p.matrices + 2 * norm + (c.biases ? biases : 0) + (c.qk_norm ? 2 * D : 0);
  p.all = c.layers * layer + p.head * (c.tied ? 1 : 2) + norm + (c.position == PositionKind::kLearned ? c.seq * H : 0);
  return p;
}

std::int64_t linear_flops_of_rank(const Options& o, const GptConfig& c, int ranks, int rank) {
  const RankParameters p = parameters_of_rank(c, ranks, rank);
  const std::int64_t again = o.recompute == "full" ? p.matrices : o.recompute == "selective" ? p.projections : 0;
  const std::int64_t tokens = o.micro_batch * c.seq * o.grad_accum;
  return tokens * (6 * (c.layers * p.matrices + p.head) + 2 * c.layers * again);
}

namespace {
bool sums_once(const std::string& strategy) { return strategy == "naive" || strategy == "ddp" || strategy == "zero1"; }
}  // namespace

std::int64_t shared_sums_per_step(const Options& o, const std::string& strategy) {
  return sums_once(strategy) ? 1 : o.grad_accum;
}

std::int64_t shared_gradient_bytes(const Options& o, const std::string& strategy) {
  const bool wide = o.dtype == Dtype::kBf16 && o.fp32_grads && (sums_once(strategy) || o.fused_grad_accum);
  return wide ? 4 : static_cast<std::int64_t>(dtype_size(o.dtype));
}

namespace {

// An all-reduce of B bytes over N ranks: each sends 2 B (N-1)/N, all together 2 B (N-1).
std::int64_t sent(std::int64_t bytes, std::int64_t ranks) { return 2 * bytes * (ranks - 1); }

// Of one layer: a rank's all-reduces, and what all ranks of the axis send. Each kv head that several ranks hold, over them; the
// two norms of q and k, over all.
PhaseTraffic shared_gradients(const GptConfig& c, int ranks, std::int64_t element) {
  PhaseTraffic t{"shared gradients", 0, 0};
  const std::int64_t D = c.head_dim(), of_head = (D * c.hidden + (c.biases ? D : 0)) * element;
  for (const Range& holders : heads_of(c, ranks, 0).holders)
    if (holders.size() > 1) t.calls += c.biases ? 4 : 2;
  for (int rank = 0; rank < ranks; ++rank) {
    const Heads heads = heads_of(c, ranks, rank);
    for (const Range& holders : heads.holders)
      if (holders.begin == rank) t.bytes += 2 * sent(of_head, holders.size());  // counted at its first holder
  }
  if (c.qk_norm) t.calls += 2, t.bytes += 2 * sent(D * element, ranks);
  return t;
}

}  // namespace

std::vector<PhaseTraffic> expected_traffic(const Options& o, const GptConfig& c, int ranks, int replicas,
                                           const std::string& strategy) {
  const auto element = static_cast<std::int64_t>(dtype_size(o.dtype));
  const auto statistic = static_cast<std::int64_t>(dtype_size(accumulator_of(o.dtype)));
  const std::int64_t T = o.micro_batch * c.seq, M = o.grad_accum, L = c.layers;
  const std::int64_t hidden = sent(T * c.hidden * element, ranks);  // an all-reduce of [T, H]
  const PhaseTraffic shared = shared_gradients(c, ranks, shared_gradient_bytes(o, strategy));
  const std::int64_t sums = L * shared_sums_per_step(o, strategy);
  std::int64_t norm_blocks_of_all = 0;
  const Gpt gpt(c);
  for (const Parameter* p : gpt.parameters()) norm_blocks_of_all += norm_blocks(product(p->global_shape));
  std::vector<PhaseTraffic> all{{"forward", 2 * L * M, 2 * L * M * hidden},
                                {"backward", 2 * L * M, 2 * L * M * hidden},
                                {"embedding", M, M * hidden},
                                {"head", M, M * hidden},
                                {"cross-entropy", 2 * M, M * sent(3 * T * statistic, ranks)},  // the maxima, and two sums
                                {"norm", 1, sent(norm_blocks_of_all * 8, ranks)}};
  if (o.recompute == "full") all.push_back({"recomputation", 2 * L * M, 2 * L * M * hidden});
  if (shared.calls > 0 || shared.bytes > 0) all.push_back({shared.phase, sums * shared.calls, sums * shared.bytes});
  for (PhaseTraffic& t : all) t.bytes *= replicas;
  return all;
}

}  // namespace ref5d::tensor_parallel
