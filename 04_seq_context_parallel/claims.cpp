#include "04_seq_context_parallel/claims.h"

#include <fmt/format.h>

#include "02_ddp_zero/claims.h"
#include "03_tensor_parallel/tensor_parallel.h"
#include "common/app/cost_claims.h"
#include "common/comm/transport.h"

namespace ref5d::seq_context_parallel {

namespace {

void claim_counts(Report& report, const Layout& l, const std::vector<RankCounts>& counts, const GlobalBatch& batch) {
  const auto cp_rank = [&](int rank) { return rank / l.tp % l.cp; };
  const auto tp_rank = [&](int rank) { return rank % l.tp; };
  claim_of_ranks(
      report, "flops of linear layers in a step", column(counts, &RankCounts::linear_flops),
      [&](int r) { return linear_flops(l, cp_rank(r), tp_rank(r)); }, "");
  const std::size_t rows = batch.rows.size() / static_cast<std::size_t>(l.dp);
  claim_of_ranks(
      report, "flops of attention in a step", column(counts, &RankCounts::attention_flops),
      [&](int r) {
        const auto first = static_cast<std::size_t>(r / (l.tp * l.cp)) * rows;
        return attention_flops(l, cp_rank(r), tp_rank(r), std::span(batch.rows).subspan(first, rows));
      },
      "");
  const auto kept = [&](int r) { return kept_of_layer(l, cp_rank(r), tp_rank(r)); };
  Layout alone = l;
  alone.tp = alone.cp = 1;
  alone.sp = false;
  claim_of_ranks(
      report, "a layer keeps of a micro-batch", column(counts, &RankCounts::bytes_per_layer),
      [&](int r) { return kept(r).total(); }, "bytes",
      fmt::format("{:.3f} of one device's / {}",
                  static_cast<double>(kept(0).total() * l.tp * l.cp) / static_cast<double>(kept_of_layer(alone, 0, 0).total()),
                  l.tp * l.cp));
}

}  // namespace

void claim_costs(Report& report, const Layout& l, const data_parallel::StrategyOptions& strategy, int shard_size,
                 const std::vector<RankCounts>& counts, const GlobalBatch& batch) {
  if (!report.loss.empty()) {
    claim_counts(report, l, counts, batch);
    if (transport_counts_wire() && l.tp > 1) claim_traffic_of_axis(report, "tp", traffic_of_tp(l), "operations");
    if (transport_counts_wire() && l.cp > 1) claim_traffic_of_axis(report, "cp", traffic_of_cp(l), "operations");
  }
  std::vector<data_parallel::Layout> layouts;
  for (int r = 0; r < l.tp; ++r) {
    Gpt gpt(l.model);
    tensor_parallel::cut(gpt, l.tp, r);
    layouts.push_back(data_parallel::layout_of(l.options, gpt, strategy, l.dp * l.cp, shard_size));
  }
  data_parallel::claim_costs(report, layouts, strategy);
}

}  // namespace ref5d::seq_context_parallel
