#include "03_tensor_parallel/claims.h"

#include <fmt/format.h>

#include <functional>

#include "02_ddp_zero/claims.h"
#include "03_tensor_parallel/costs.h"
#include "03_tensor_parallel/kept_activations.h"
#include "03_tensor_parallel/tensor_parallel.h"
#include "common/app/settings.h"
#include "common/comm/transport.h"

namespace ref5d::tensor_parallel {

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
    claim_equal(report, fmt::format("tp, {}: all-reduces of rank 0", e.phase), steps * e.calls, calls, "");
    claim_equal(report, fmt::format("tp, {}: sent by all ranks", e.phase), steps * e.bytes, bytes, "bytes");
    expected_of_all += e.bytes;
  }
  for (const TrafficRow& row : report.traffic)
    if (is_tensor_parallel(row)) all += row.total_wire_bytes;
  claim_equal(report, "tp, everything: sent by all ranks", steps * expected_of_all, all, "bytes");
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
  claim_equal(report, fmt::format("tp: sent between nodes, with the axis {}", together ? "inside of them" : "across them"),
              together ? 0 : sent, between, "bytes");
}

// Of every rank: the first by name, how many of the others differ.
void claim_of_ranks(Report& report, const std::string& name, const std::vector<RankCounts>& counts,
                    std::int64_t RankCounts::*counted, const std::function<std::int64_t(int rank)>& formula, const char* unit,
                    const std::string& note) {
  std::int64_t others = 0;
  for (std::size_t r = 1; r < counts.size(); ++r) others += counts[r].*counted == formula(static_cast<int>(r)) ? 0 : 1;
  claim_equal(report, name + ", rank 0", formula(0), counts[0].*counted, unit, note);
  if (counts.size() > 1) claim_equal(report, name + ": other ranks that differ", 0, others, "");
}

void claim_counts(Report& report, const Options& o, const GptConfig& c, int ranks, const std::vector<RankCounts>& counts) {
  const double share = static_cast<double>(c.parameter_count()) / ranks;
  const auto parameters = [&](int r) { return parameters_of_rank(c, ranks, r % ranks).all; };
  claim_of_ranks(report, "parameters", counts, &RankCounts::parameters, parameters, "",
                 fmt::format("{:.3f} x of all / {}", static_cast<double>(counts[0].parameters) / share, ranks));
  if (report.loss.empty()) return;
  const auto flops = [&](int r) { return linear_flops_of_rank(o, c, ranks, r % ranks); };
  claim_of_ranks(report, "flops of linear layers in a step", counts, &RankCounts::linear_flops, flops, "", "");
  const auto kept = [&](int r) { return layer_activations(o, c, o.micro_batch * c.seq, ranks, r % ranks); };
  claim_of_ranks(
      report, "a layer keeps of a micro-batch", counts, &RankCounts::bytes_per_layer, [&](int r) { return kept(r).total(); },
      "bytes", fmt::format("{} of them are not divided", kept(0).whole));
}

}  // namespace

void claim_costs(Report& report, const Options& o, const data_parallel::StrategyOptions& strategy, const World& world,
                 const Mesh& mesh, int shard_size, const std::vector<RankCounts>& counts) {
  const GptConfig model = model_config(o);
  const int ranks = static_cast<int>(mesh.size("tp")), replicas = static_cast<int>(mesh.size("dp"));
  claim_counts(report, o, model, ranks, counts);
  if (!report.loss.empty() && transport_counts_wire()) {
    claim_traffic(report, o, model, ranks, replicas, strategy.kind);
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
