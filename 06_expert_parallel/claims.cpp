#include "06_expert_parallel/claims.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "04_seq_context_parallel/context_parallel.h"
#include "common/app/cost_claims.h"
#include "common/app/settings.h"
#include "common/comm/transport.h"

namespace ref5d::expert_parallel {

Layout layout_of(const LayoutPlan& plan, const Lesson& lesson, Mesh& mesh) {
  const Options& options = plan.options;
  const auto size = [&](const char* axis) { return static_cast<int>(mesh.size(axis)); };
  Layout l{options, model_config(options), lesson.expert, {}, size("pp"), size("edp"), size("cp"), lesson.pipeline.stage.sp};
  l.tokens.moe = l.model.moe;
  l.tokens.layers = l.model.layers;
  l.tokens.seq = l.model.seq;
  l.tokens.micro_batch = options.micro_batch;
  l.tokens.dp = size("dp");
  l.tokens.global_batch = options.micro_batch * options.grad_accum * l.tokens.dp;
  l.tokens.ep = size("ep");
  l.tokens.tp = size("tp");
  l.tokens.expert_tp = lesson.expert.expert_tp;
  l.tokens.sequences = context_parallel::make_layout(lesson.pipeline.stage.context.layout, l.model.seq, l.cp);
  if (lesson.expert.dispatcher == "hierarchical") l.tokens.nodes = nodes_of_groups(mesh);
  if (plan.plan)
    l.tokens.stage_rank = [plan = plan.plan](std::int64_t layer, std::int64_t micro_batch) {
      int stage = 0;
      for (; layer >= plan->layers[static_cast<std::size_t>(stage)]; ++stage)
        layer -= plan->layers[static_cast<std::size_t>(stage)];
      return plan->assignment.rank_of(stage, static_cast<int>(micro_batch % plan->schedule.micro_batches));
    };
  return l;
}

namespace {

std::int64_t element_bytes(const Layout& l) { return static_cast<std::int64_t>(dtype_size(l.options.dtype)); }

// Of what goes with a row: its choices, and their weights, which are in the accumulator's dtype.
struct ChoiceBytes {
  std::int64_t chosen, weights;
};
ChoiceBytes choice_bytes(const Layout& l) {
  const std::int64_t k = l.model.moe.top_k;
  return {k * 4, k * static_cast<std::int64_t>(dtype_size(accumulator_of(l.options.dtype)))};
}

RoutedBytes bytes_of_all_gather(const RoutedRows& rows, const Layout& l) {
  const ChoiceBytes choice = choice_bytes(l);
  const std::int64_t rows_to_others = rows.held * (l.tokens.ep - 1), row = l.model.hidden * element_bytes(l);
  RoutedBytes b;
  b.dispatch = rows_to_others * (row + choice.chosen + choice.weights);
  b.combine = b.combine_backward = rows_to_others * row;
  b.dispatch_backward = rows_to_others * (row + choice.weights);
  return b;
}

}  // namespace

RoutedBytes routed_bytes(const RoutedRows& rows, const Layout& l) {
  RoutedBytes b;
  if (l.tokens.ep == 1) return b;
  if (l.expert.dispatcher == "allgather") {
    b = bytes_of_all_gather(rows, l);
  } else {
    const bool hierarchical = !l.tokens.nodes.empty();
    const std::int64_t moved = hierarchical ? rows.between_nodes + rows.inside_nodes : rows.leaving;
    b.dispatch = b.combine = b.combine_backward = b.dispatch_backward = moved * l.model.hidden * element_bytes(l);
    b.counts = rows.counts * 4;
    const ChoiceBytes choice = choice_bytes(l);
    if (hierarchical) b.choices = rows.between_nodes * (choice.chosen + 2 * choice.weights);
  }
  if (l.options.recompute == "full") {
    const std::int64_t gradients = l.tokens.nodes.empty() ? 0 : rows.between_nodes * choice_bytes(l).weights;
    b.recomputation = b.dispatch + b.combine + b.counts + b.choices - gradients;
  }
  return b;
}

namespace {

void claim_traffic(Report& report, const Layout& l, const RoutedRows& rows) {
  const RoutedBytes b = routed_bytes(rows, l);
  std::int64_t all = 0, expected = 0;
  const auto sent = [&](const std::string& phase) {
    std::int64_t bytes = 0;
    for (const TrafficRow& row : report.traffic)
      if (is_of_axis(row, "ep") && (phase.empty() || row.phase == phase)) bytes += row.total_wire_bytes;
    return bytes;
  };
  const std::pair<const char*, std::int64_t> phases[] = {{"dispatch", b.dispatch},
                                                         {"combine", b.combine},
                                                         {"combine backward", b.combine_backward},
                                                         {"dispatch backward", b.dispatch_backward},
                                                         {"counts", b.counts},
                                                         {"choices", b.choices},
                                                         {"recomputation", b.recomputation}};
  for (const auto& [phase, bytes] : phases) {
    if (bytes > 0 || sent(phase) > 0)
      claim_equal(report, fmt::format("ep, {}: sent by all ranks in all steps", phase), bytes, sent(phase), "bytes");
    expected += bytes;
  }
  for (const TrafficRow& row : report.traffic)  // the norm is lesson 02's
    if (is_of_axis(row, "ep") && row.phase != "norm") all += row.total_wire_bytes;
  claim_equal(report, "ep, everything but the norm: sent by all ranks in all steps", expected, all, "bytes");
}

Routes of_first_step(const Routes& routes, const TokenLayout& l) {
  Routes first{routes.seq, routes.top_k, {}};
  std::int64_t least = -1;
  for (const auto& [key, choices] : routes.chosen) least = least < 0 ? key.second : std::min(least, key.second);
  for (const auto& [key, choices] : routes.chosen)
    if (key.second < least + l.global_batch) first.chosen[key] = choices;
  return first;
}

// Three matrices of H x F: a forward, and in backward two products for each; once more forward where it runs again.
void claim_flops(Report& report, const Layout& l, const Routes& routes, const std::vector<RankCounts>& counts) {
  const RoutedRows rows = count_rows(of_first_step(routes, l.tokens), l.tokens);
  const std::int64_t passes = l.options.recompute == "full" ? 4 : 3;
  std::int64_t expected = std::accumulate(rows.of_expert.begin(), rows.of_expert.end(), std::int64_t{0});
  if (l.model.moe.pad_to_capacity) expected = l.tokens.layers * padded_rows(l.tokens);
  std::int64_t measured = 0;
  for (const RankCounts& c : counts) measured += c.expert_flops;
  claim_equal(report, "flops of routed experts in the first step, all ranks",
              expected * passes * 3 * 2 * l.model.hidden * l.model.ffn, measured, "");
}

}  // namespace

void claim_routing(Report& report, const Layout& l, const Routes& routes, const std::vector<RankCounts>& counts) {
  if (report.loss.empty()) return;
  const RoutedRows rows = count_rows(routes, l.tokens);
  const auto sum = [&](std::int64_t RankCounts::*counted) {
    std::int64_t n = 0;
    for (const RankCounts& c : counts) n += c.*counted;
    return n;
  };
  if (l.options.documents == "none")  // else some rows may have padding, which nobody counts
    claim_equal(report, "choices that the routers counted, all ranks", rows.routed, sum(&RankCounts::choices), "");
  claim_equal(report, "rows that were sent to experts, all ranks", rows.kept, sum(&RankCounts::sent), "");
  claim_flops(report, l, routes, counts);
  if (l.tokens.ep > 1 && transport_counts_wire()) claim_traffic(report, l, rows);
}

}  // namespace ref5d::expert_parallel
