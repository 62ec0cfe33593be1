#include "03_tensor_parallel/claims.h"

#include <fmt/format.h>

#include "02_ddp_zero/claims.h"
#include "03_tensor_parallel/kept_activations.h"
#include "03_tensor_parallel/tensor_parallel.h"
#include "common/app/settings.h"
#include "common/comm/transport.h"
#include "common/kernels/grad_norm.h"

namespace ref5d::tensor_parallel {

std::int64_t parameters_of_rank(const GptConfig& c, int ranks, int rank) {
  const Heads heads = heads_of(c, ranks, rank);
  const std::int64_t H = c.hidden, D = c.head_dim(), query = heads.query.size() * D, kv = heads.kv.size() * D;
  const std::int64_t F = share_of(c.ffn, ranks, rank).size(), V = share_of(c.vocab, ranks, rank).size();
  const std::int64_t ups = c.mlp == MlpKind::kSwiglu ? 2 : 1, norm = (c.norm == NormKind::kLayer ? 2 : 1) * H;
  std::int64_t layer = H * (query + 2 * kv) + query * H + ups * H * F + F * H + 2 * norm;
  if (c.biases) layer += query + 2 * kv + H + ups * F + H;
  if (c.qk_norm) layer += 2 * D;
  return c.layers * layer + V * H * (c.tied ? 1 : 2) + (c.position == PositionKind::kLearned ? c.seq * H : 0) + norm;
}

namespace {

// Strategies that keep whole gradients sum what is shared once a step, the others after each micro-batch.
bool sums_once(const std::string& strategy) { return strategy == "naive" || strategy == "ddp" || strategy == "zero1"; }
std::int64_t shared_sums_per_step(const Options& o, const std::string& strategy) {
  return sums_once(strategy) ? 1 : o.grad_accum;
}

// Bytes of an element of the gradient that is summed: the step's sum, which is wide, or a micro-batch's.
std::int64_t gradient_bytes(const Options& o, const std::string& strategy) {
  const bool wide = o.dtype == Dtype::kBf16 && o.fp32_grads && (sums_once(strategy) || o.fused_grad_accum);
  return wide ? 4 : static_cast<std::int64_t>(dtype_size(o.dtype));
}

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
  const PhaseTraffic shared = shared_gradients(c, ranks, gradient_bytes(o, strategy));
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

namespace {

bool is_tensor_parallel(const TrafficRow& row) { return row.axis == "tp" || row.axis.starts_with("tp["); }

void claim_equal(Report& report, const std::string& name, std::int64_t expected, std::int64_t measured, const char* unit,
                 const std::string& note = "") {
  report.claims.push_back(make_claim(name, static_cast<double>(expected), static_cast<double>(measured), 0, unit, note));
}

void claim_traffic(Report& report, const Options& o, const GptConfig& c, int ranks, int replicas, const std::string& strategy) {
  const auto steps = static_cast<std::int64_t>(report.loss.size());
  std::int64_t all = 0, expected_of_all = 0;
  for (const PhaseTraffic& e : expected_traffic(o, c, ranks, replicas, strategy)) {
    std::int64_t calls = 0, bytes = 0;
    for (const TrafficRow& row : report.traffic) {
      if (!is_tensor_parallel(row) || row.phase != e.phase) continue;
      calls += row.calls;
      bytes += row.total_wire_bytes;
    }
    claim_equal(report, fmt::format("tp, {}: all-reduces of a rank in a step", e.phase), e.calls, calls / steps, "");
    claim_equal(report, fmt::format("tp, {}: sent in a step by all ranks", e.phase), e.bytes, bytes / steps, "bytes");
    expected_of_all += e.bytes;
  }
  for (const TrafficRow& row : report.traffic)
    if (is_tensor_parallel(row)) all += row.total_wire_bytes;
  claim_equal(report, "tp: sent in all steps by all ranks", steps * expected_of_all, all, "bytes");
}

// What the axis sends between nodes: nothing if each of its groups of ranks is within one, everything if no two ranks of a
// group share one. Where some do, it depends on which.
void claim_between_nodes(Report& report, const World& world, const std::vector<int>& all, int ranks) {
  if (world.node_count() < 2 || ranks == 1) return;
  bool apart = true, together = true;
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::size_t j = i + 1; j < all.size() && j / static_cast<std::size_t>(ranks) == i / static_cast<std::size_t>(ranks);
         ++j)
      (world.node(all[i]) == world.node(all[j]) ? apart : together) = false;
  }
  if (!apart && !together) return;
  std::int64_t sent = 0, between = 0;
  for (const TrafficRow& row : report.traffic) {
    if (!is_tensor_parallel(row)) continue;
    sent += row.total_wire_bytes;
    between += row.total_between_nodes_bytes;
  }
  claim_equal(report,
              fmt::format("tp: sent between nodes in all steps, with the axis {}", together ? "inside of them" : "across them"),
              together ? 0 : sent, between, "bytes");
}

void claim_activations(Report& report, const Options& o, const GptConfig& c, int ranks,
                       const std::vector<std::int64_t>& bytes_per_layer) {
  std::int64_t others = 0;
  for (std::size_t r = 0; r < bytes_per_layer.size(); ++r) {
    const int rank = static_cast<int>(r) % ranks;
    const LayerActivations expected = layer_activations(o, c, o.micro_batch * c.seq, ranks, rank);
    if (r == 0) {
      claim_equal(report, "a layer keeps of a micro-batch, rank 0", expected.total(), bytes_per_layer[r], "bytes",
                  fmt::format("{} of them are not divided", expected.whole));
    } else {
      others += bytes_per_layer[r] == expected.total() ? 0 : 1;
    }
  }
  if (bytes_per_layer.size() > 1) claim_equal(report, "a layer keeps: ranks that differ from the formula", 0, others, "");
}

}  // namespace

void claim_costs(Report& report, const Options& o, const Lesson& lesson, const World& world, const Mesh& mesh, int shard_size,
                 const std::vector<std::int64_t>& bytes_per_layer) {
  const GptConfig model = model_config(o);
  const int ranks = static_cast<int>(mesh.size("tp")), replicas = static_cast<int>(mesh.size("dp"));
  std::vector<data_parallel::Layout> layouts;
  std::int64_t differing = 0;
  for (int r = 0; r < ranks; ++r) {
    Gpt gpt(model);
    cut(gpt, ranks, r);
    layouts.push_back(data_parallel::layout_of(o, gpt, lesson.strategy, replicas, shard_size));
    differing += layouts.back().parameters == parameters_of_rank(model, ranks, r) ? 0 : 1;
  }
  const auto shared_out = static_cast<double>(model.parameter_count()) / ranks;
  claim_equal(report, "parameters of rank 0 of the tp axis", parameters_of_rank(model, ranks, 0), layouts[0].parameters, "",
              fmt::format("{:.3f} x of all / {}", static_cast<double>(layouts[0].parameters) / shared_out, ranks));
  claim_equal(report, "parameters: ranks of the axis that differ from the formula", 0, differing, "");
  if (!report.loss.empty() && transport_counts_wire()) {
    claim_traffic(report, o, model, ranks, replicas, lesson.strategy.kind);
    claim_between_nodes(report, world, mesh.everyone().ranks, ranks);
  }
  if (!bytes_per_layer.empty()) claim_activations(report, o, model, ranks, bytes_per_layer);
  data_parallel::claim_costs(report, layouts, lesson.strategy);
}

}  // namespace ref5d::tensor_parallel
