#include "05_pipeline/claims.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "02_ddp_zero/claims.h"
#include "03_tensor_parallel/cut.h"
#include "03_tensor_parallel/tensor_parallel.h"
#include "05_pipeline/live.h"
#include "05_pipeline/pipeline_parallel.h"
#include "05_pipeline/simulate.h"
#include "common/app/cost_claims.h"
#include "common/comm/transport.h"

namespace ref5d::pipeline {

namespace {

// Bytes that a stage keeps of one micro-batch: what its first forward, or its first I, has added.
struct StageBytes {
  std::map<int, std::int64_t> activations, weight_work;
};
StageBytes first_additions(const std::vector<Cell>& cells, const std::vector<CellMemory>& memory) {
  StageBytes bytes;
  CellMemory before;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const Operation& o = cells[i].operation;
    const std::int64_t added = memory[i].activations - before.activations;
    // F&B: what B has let go, whose forward came before, is not what F has not added.
    const std::int64_t released = cells[i].beside ? bytes.activations.at(cells[i].beside->stage) : 0;
    if (o.pass == Pass::kForward) bytes.activations.try_emplace(o.stage, added + released);
    if (o.pass == Pass::kInput) bytes.weight_work.try_emplace(o.stage, memory[i].weight_work - before.weight_work);
    before = memory[i];
  }
  return bytes;
}

std::int64_t bytes_of(const std::vector<int>& live, const std::map<int, std::int64_t>& bytes) {
  std::int64_t sum = 0;
  for (std::size_t stage = 0; stage < live.size(); ++stage)
    if (live[stage] > 0) sum += live[stage] * bytes.at(static_cast<int>(stage));
  return sum;
}

}  // namespace

RankCounts count(const Plan& plan, int pp_rank, const std::vector<CellMemory>& memory, std::int64_t linear_flops) {
  RankCounts counts{.linear_flops = linear_flops};
  const std::vector<Cell>& cells = plan.schedule.ranks[static_cast<std::size_t>(pp_rank)];
  if (memory.size() != cells.size()) {  // no step was taken, or not recorded
    counts.differing_cells = static_cast<std::int64_t>(cells.size());
    return counts;
  }
  const std::vector<Live> live = live_after(plan.schedule, pp_rank);
  const StageBytes bytes = first_additions(cells, memory);
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const bool same = memory[i].activations == bytes_of(live[i].activations, bytes.activations) &&
                      memory[i].weight_work == bytes_of(live[i].weight_work, bytes.weight_work);
    counts.differing_cells += same ? 0 : 1;
    counts.peak_bytes = std::max(counts.peak_bytes, memory[i].activations);
  }
  const std::vector<int>& stages = plan.assignment.stages_of(pp_rank);
  if (stages.size() == 1) counts.forward_bytes = bytes.activations.at(stages.front());
  return counts;
}

namespace {

struct Coordinates {
  int pp, dp, cp, tp;
};
Coordinates coordinates(const Layout& l, int rank) {
  const int tp = l.stage.tp, cp = l.stage.cp, dp = l.stage.dp;
  return {rank / (tp * cp * dp), rank / (tp * cp) % dp, rank / tp % cp, rank % tp};
}

// Activations and the work of weight gradients together, in passes of a stage: at most, after any cell of any rank.
int peak_of_both(const Schedule& schedule) {
  int peak = 0;
  for (int r = 0; r < schedule.rank_count(); ++r)
    for (const Live& live : live_after(schedule, r)) peak = std::max(peak, live.all_activations() + live.all_weight_work());
  return peak;
}

// By the ledger where a rank has one stage. Of several, whose bytes differ, the schedule's own count: that the ledger agrees
// with it after every cell is a claim of its own.
void claim_memory_of_schedule(Report& report, const Layout& l, const std::vector<RankCounts>& counts) {
  claim_of_ranks(
      report, "cells after which the ledger differs from what the schedule keeps", column(counts, &RankCounts::differing_cells),
      [](int) { return 0; }, "");
  const Schedule& s = l.plan->schedule;
  const int ranks_of_stage = l.stage.tp * l.stage.cp * l.stage.dp;
  for (int pp = 0; pp < l.ranks(); ++pp) {
    const std::optional<double> peak = closed_peak(l.schedule, pp);
    if (!peak) continue;
    const RankCounts& c = counts.at(pp * ranks_of_stage);
    const auto stages = static_cast<double>(l.plan->assignment.stages_of(pp).size());
    const bool by_ledger = c.forward_bytes > 0;  // one stage, and more than the embedding, which keeps nothing
    const double measured =
        by_ledger ? static_cast<double>(c.peak_bytes) / static_cast<double>(c.forward_bytes) : peak_activations(s, pp) / stages;
    report.claims.push_back(make_claim(fmt::format("pp rank {} keeps between cells{}", pp, by_ledger ? "" : ", as scheduled"),
                                       *peak, measured, 0, "micro-batches",
                                       fmt::format("{:.1f} KiB", static_cast<double>(c.peak_bytes) / 1024)));
  }
  if (const auto both = closed_peak_of_both(l.schedule))
    claim_equal(report, "a rank keeps of activations and weights' work together, as scheduled", *both, peak_of_both(s),
                "passes");
  if (!l.schedule.name.starts_with("dualpipe")) return;
  int most = 0;
  for (int pp = 0; pp < l.ranks(); ++pp) most = std::max(most, peak_activations(s, pp));
  claim_equal(report, "a rank keeps activations of one pass more than stages, as scheduled", s.stages + 1, most, "passes");
}

void claim_bubble(Report& report, const Layout& l) {
  const double chunk = l.schedule.name == "interleaved" ? 1.0 / l.schedule.chunks : 1.0;
  const std::optional<double> bubble = closed_bubble(l.schedule, 1, 1, 1);
  if (!bubble) return;
  const Simulation s = simulate(l.plan->schedule, uniform_costs(chunk, chunk, chunk));
  const double idle = scheduled_bubble(l.schedule, s);
  report.claims.push_back(make_claim("idle time of a rank, if F, I and W take 1", *bubble, idle, 1e-12, "",
                                     fmt::format("{:.1f}% of {:g}", 100 * s.bubble_rate(), s.cost())));
}

void claim_traffic(Report& report, const Layout& l, const data_parallel::StrategyOptions& strategy) {
  claim_traffic_of_axis(report, "pp", traffic_of_pp(l), "operations");
  const bool once = strategy.kind == "naive" || strategy.kind == "ddp" || strategy.kind == "zero1";
  // Of what lesson 04 says of one model: rank 0 makes the first stages' calls alone, each stage finds its part of the norm, and
  // a stage's copies each sum what their ranks share, once a step.
  const auto over_stages = [&](std::vector<PhaseTraffic> phases) {
    for (PhaseTraffic& p : phases) {
      p.calls = kAnyCalls;
      if (p.phase == "norm") p.bytes *= l.ranks();
      if (p.phase == "shared gradients" && once && l.plan->assignment.copies()) p.bytes *= 2;
    }
    return phases;
  };
  if (l.stage.tp > 1) claim_traffic_of_axis(report, "tp", over_stages(traffic_of_tp(l.stage)), "operations");
  if (l.stage.cp > 1) claim_traffic_of_axis(report, "cp", over_stages(traffic_of_cp(l.stage)), "operations");
}

void claim_data_parallel(Report& report, const Layout& l, const data_parallel::StrategyOptions& strategy, int shard_size) {
  const bool copies = l.plan->assignment.copies();
  const int P = l.ranks(), ranks = l.stage.dp * l.stage.cp * (copies ? 2 : 1);
  std::vector<data_parallel::Layout> layouts;
  for (int pp = 0; pp < (copies ? P / 2 : P); ++pp) {
    for (int tp = 0; tp < l.stage.tp; ++tp) {
      Gpt gpt(l.stage.model);
      tensor_parallel::cut(gpt, l.stage.tp, tp);
      cut(gpt, *l.plan, pp);
      layouts.push_back(data_parallel::layout_of(l.options, gpt, strategy, ranks, shard_size));
      layouts.back().micro_batches = l.micro_batches_of_stage();
      layouts.back().passes.clear();
      for (int stage : l.plan->assignment.stages_of(pp))
        layouts.back().passes.push_back(l.plan->units[static_cast<std::size_t>(stage)]);
    }
  }
  std::vector<data_parallel::RankPart> parts;
  for (int rank = 0; rank < P * l.stage.tp * l.stage.cp * l.stage.dp; ++rank) {
    const Coordinates c = coordinates(l, rank);
    const bool second = copies && c.pp >= P / 2;
    const int pp = second ? P - 1 - c.pp : c.pp, place = ((second ? l.stage.dp : 0) + c.dp) * l.stage.cp + c.cp;
    parts.push_back({static_cast<std::size_t>(pp * l.stage.tp + c.tp), place});
  }
  data_parallel::claim_costs(report, layouts, parts, strategy);
}

}  // namespace

void claim_costs(Report& report, const Layout& l, const data_parallel::StrategyOptions& strategy, int shard_size,
                 const std::vector<RankCounts>& counts) {
  claim_bubble(report, l);
  if (!report.loss.empty()) {
    claim_memory_of_schedule(report, l, counts);
    claim_of_ranks(
        report, "flops of linear layers in a step", column(counts, &RankCounts::linear_flops),
        [&](int rank) {
          const Coordinates c = coordinates(l, rank);
          return linear_flops(l, c.pp, c.cp, c.tp);
        },
        "");
    if (transport_counts_wire()) claim_traffic(report, l, strategy);
  }
  claim_data_parallel(report, l, strategy, shard_size);
}

}  // namespace ref5d::pipeline
