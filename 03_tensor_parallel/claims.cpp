#include "03_tensor_parallel/claims.h"

#include <fmt/format.h>

#include "02_ddp_zero/claims.h"
#include "03_tensor_parallel/costs.h"
#include "03_tensor_parallel/kept_activations.h"
#include "03_tensor_parallel/tensor_parallel.h"
#include "common/app/cost_claims.h"
#include "common/app/settings.h"
#include "common/comm/transport.h"

namespace ref5d::tensor_parallel {

namespace {

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
    if (!is_of_axis(row, "tp")) continue;
    sent += row.total_wire_bytes;
    between += row.total_between_nodes_bytes;
  }
  claim_equal(report, fmt::format("tp: sent between nodes, with the axis {}", together ? "inside of them" : "across them"),
              together ? 0 : sent, between, "bytes");
}

void claim_counts(Report& report, const Options& o, const GptConfig& c, int ranks, const std::vector<RankCounts>& counts) {
  const double share = static_cast<double>(c.parameter_count()) / ranks;
  const auto parameters = [&](int r) { return parameters_of_rank(c, ranks, r % ranks).all; };
  claim_of_ranks(report, "parameters", column(counts, &RankCounts::parameters), parameters, "",
                 fmt::format("{:.3f} x of all / {}", static_cast<double>(counts[0].parameters) / share, ranks));
  if (report.loss.empty()) return;
  const auto flops = [&](int r) { return linear_flops_of_rank(o, c, ranks, r % ranks); };
  claim_of_ranks(report, "flops of linear layers in a step", column(counts, &RankCounts::linear_flops), flops, "");
  const auto kept = [&](int r) { return layer_activations(o, c, o.micro_batch * c.seq, ranks, r % ranks); };
  claim_of_ranks(
      report, "a layer keeps of a micro-batch", column(counts, &RankCounts::bytes_per_layer),
      [&](int r) { return kept(r).total(); }, "bytes", fmt::format("{} of them are not divided", kept(0).whole));
}

}  // namespace

void claim_costs(Report& report, const Options& o, const data_parallel::StrategyOptions& strategy, const World& world,
                 const Mesh& mesh, int shard_size, const std::vector<RankCounts>& counts) {
  const GptConfig model = model_config(o);
  const int ranks = static_cast<int>(mesh.size("tp")), replicas = static_cast<int>(mesh.size("dp"));
  claim_counts(report, o, model, ranks, counts);
  if (!report.loss.empty() && transport_counts_wire()) {
    claim_traffic_of_axis(report, "tp", expected_traffic(o, model, ranks, replicas, strategy.kind), "all-reduces");
    claim_between_nodes(report, world, mesh.everyone().ranks, ranks);
  }
  std::vector<data_parallel::Layout> layouts;
  for (int r = 0; r < ranks; ++r) {
    Gpt gpt(model);
    cut(gpt, ranks, r);
    layouts.push_back(data_parallel::layout_of(o, gpt, strategy, replicas, shard_size));
  }
  data_parallel::claim_costs(report, layouts, strategy);
}

}  // namespace ref5d::tensor_parallel
