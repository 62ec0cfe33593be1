#include "04_seq_context_parallel/claims.h"

#include <fmt/format.h>

#include <functional>

#include "02_ddp_zero/claims.h"
#include "03_tensor_parallel/tensor_parallel.h"
#include "common/comm/transport.h"

namespace ref5d::seq_context_parallel {

namespace {

void claim_equal(Report& report, const std::string& name, std::int64_t expected, std::int64_t measured, const char* unit,
                 const std::string& note = "") {
  report.claims.push_back(make_claim(name, static_cast<double>(expected), static_cast<double>(measured), 0, unit, note));
}

// Over the axis, a part of it or some of its ranks: "cp", "cp/inner", "tp[0-1]".
bool is_of(const TrafficRow& row, const std::string& axis) {
  return row.axis == axis || row.axis.starts_with(axis + "/") || row.axis.starts_with(axis + "[");
}

void claim_axis(Report& report, const std::string& axis, const std::vector<PhaseTraffic>& expected) {
  const auto steps = static_cast<std::int64_t>(report.loss.size());
  std::int64_t all = 0, expected_of_all = 0;
  for (const PhaseTraffic& e : expected) {
    std::int64_t calls = 0, bytes = 0;
    for (const TrafficRow& row : report.traffic) {
      if (!is_of(row, axis) || row.phase != e.phase) continue;
      calls += row.calls;
      bytes += row.total_wire_bytes;
    }
    claim_equal(report, fmt::format("{}, {}: operations of rank 0", axis, e.phase), steps * e.calls, calls, "");
    claim_equal(report, fmt::format("{}, {}: sent by all ranks", axis, e.phase), steps * e.bytes, bytes, "bytes");
    expected_of_all += e.bytes;
  }
  for (const TrafficRow& row : report.traffic)
    if (is_of(row, axis)) all += row.total_wire_bytes;
  claim_equal(report, axis + ", everything: sent by all ranks", steps * expected_of_all, all, "bytes");
}

// Of every rank: the first by name, how many of the others differ.
void claim_of_ranks(Report& report, const std::string& name, const std::vector<RankCounts>& counts,
                    std::int64_t RankCounts::*counted, const std::function<std::int64_t(int rank)>& formula, const char* unit,
                    const std::string& note = "") {
  std::int64_t others = 0;
  for (std::size_t r = 1; r < counts.size(); ++r) others += counts[r].*counted == formula(static_cast<int>(r)) ? 0 : 1;
  claim_equal(report, name + ", rank 0", formula(0), counts[0].*counted, unit, note);
  if (counts.size() > 1) claim_equal(report, name + ": other ranks that differ", 0, others, "");
}

void claim_counts(Report& report, const Layout& l, const std::vector<RankCounts>& counts, std::int64_t pairs) {
  const auto cp_rank = [&](int rank) { return rank / l.tp % l.cp; };
  const auto tp_rank = [&](int rank) { return rank % l.tp; };
  claim_of_ranks(
      report, "flops of linear layers in a step", counts, &RankCounts::linear_flops,
      [&](int r) { return linear_flops(l, cp_rank(r), tp_rank(r)); }, "");
  std::int64_t attention = 0;
  for (const RankCounts& c : counts) attention += c.attention_flops;
  claim_equal(report, "flops of attention in a step, all ranks", attention_flops(l, pairs), attention, "");
  const auto kept = [&](int r) { return kept_of_layer(l, cp_rank(r), tp_rank(r)); };
  Layout alone = l;
  alone.tp = alone.cp = 1;
  alone.sp = false;
  claim_of_ranks(
      report, "a layer keeps of a micro-batch", counts, &RankCounts::bytes_per_layer, [&](int r) { return kept(r).total(); },
      "bytes",
      fmt::format("{:.3f} of one device's / {}",
                  static_cast<double>(kept(0).total() * l.tp * l.cp) / static_cast<double>(kept_of_layer(alone, 0, 0).total()),
                  l.tp * l.cp));
}

}  // namespace

void claim_costs(Report& report, const Layout& l, const data_parallel::StrategyOptions& strategy, int shard_size,
                 const std::vector<RankCounts>& counts, std::int64_t pairs) {
  if (!report.loss.empty()) {
    claim_counts(report, l, counts, pairs);
    if (transport_counts_wire() && l.tp > 1) claim_axis(report, "tp", traffic_of_tp(l));
    if (transport_counts_wire() && l.cp > 1) claim_axis(report, "cp", traffic_of_cp(l));
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
