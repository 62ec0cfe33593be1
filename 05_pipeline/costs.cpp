#include "05_pipeline/costs.h"

#include <algorithm>

#include "common/kernels/grad_norm.h"

namespace ref5d::pipeline {

std::optional<double> closed_bubble(const ScheduleOptions& s, double forward, double input, double weight) {
  const double P = s.ranks, all = forward + input + weight;
  const bool fills = s.micro_batches >= 2 * s.ranks, w_fits = weight <= forward;
  if (s.name == "gpipe" || s.name == "1f1b") return (P - 1) * all;
  if (s.name == "interleaved" && s.group == 0 && s.micro_batches >= s.ranks) return (P - 1) * all / s.chunks;
  if (s.name == "zb-h1" && fills && w_fits) return (P - 1) * (forward + input - weight);
  if (s.name == "zb-h2" && fills && w_fits && 2 * weight <= forward + input) return (P - 1) * (forward + input - 2 * weight);
  if (s.name == "zb-v" && fills && forward == input && input == weight) return 0.0;
  const double half = s.name == "dualpipe" ? P / 2 : P;
  if ((s.name == "dualpipe" || s.name == "dualpipev") && forward == input)
    return (half - 1) * (all + (input + weight) - 3 * weight);
  return std::nullopt;
}

std::optional<double> closed_peak(const ScheduleOptions& s, int rank) {
  const int P = s.ranks, M = s.micro_batches, after = P - rank;  // ranks from this one to the last
  if (s.name == "gpipe") return M;
  if (s.name == "1f1b" || s.name == "zb-h1" || (s.name == "interleaved" && s.chunks == 1)) return std::min(M, after);
  if (s.name == "zb-h2") return std::min(M, 2 * after - 1);
  if (s.name == "interleaved" && s.group == 0 && M % P == 0)
    return static_cast<double>(std::min(M * s.chunks, 2 * (after - 1) + (s.chunks - 1) * P + 1)) / s.chunks;
  if (s.name == "zb-v" && M >= 2 * P) return P;
  return std::nullopt;
}

std::optional<std::int64_t> closed_peak_of_both(const ScheduleOptions& s) {
  const std::int64_t P = s.ranks;
  if (s.micro_batches < 2 * P) return std::nullopt;
  if (s.name == "zb-h1") return P;
  if (s.name == "zb-h2") return 2 * P - 1;
  if (s.name == "zb-v") return 2 * P;
  return std::nullopt;
}

double scheduled_bubble(const ScheduleOptions& schedule, const Simulation& run) {
  if (!schedule.name.starts_with("dualpipe")) return run.cost() - run.busy(0);
  double idle = 0;
  for (int r = 0; r < static_cast<int>(run.ranks.size()); ++r) idle = std::max(idle, run.idle(r));
  return idle;
}

std::int64_t crossings(const Schedule& schedule) {
  const Assignment assignment(schedule);
  std::int64_t crossed = 0;
  for (int stage = 0; stage + 1 < schedule.stages; ++stage)
    for (int m = 0; m < schedule.micro_batches; ++m)
      crossed += assignment.rank_of(stage, m) == assignment.rank_of(stage + 1, m) ? 0 : 1;
  return crossed;
}

std::int64_t boundary_bytes(const Layout& l) {
  const std::int64_t copies = l.stage.sp ? 1 : l.stage.tp;
  return copies * l.options.micro_batch * l.stage.model.seq * l.stage.model.hidden *
         static_cast<std::int64_t>(dtype_size(l.options.dtype));
}

std::vector<PhaseTraffic> traffic_of_pp(const Layout& l) {
  const std::int64_t ranks_of_stage = std::int64_t{1} * l.stage.tp * l.stage.cp * l.stage.dp, P = l.ranks();
  std::int64_t norm_blocks_of_all = 0;
  const Gpt gpt(l.stage.model);
  for (const Parameter* p : gpt.parameters()) norm_blocks_of_all += norm_blocks(product(p->global_shape));
  std::vector<PhaseTraffic> all{
      {"boundaries", kAnyCalls, 2 * crossings(l.plan->schedule) * l.runs * l.stage.dp * boundary_bytes(l)},
      {"norm", 1, 2 * (P - 1) * norm_blocks_of_all * 8 * ranks_of_stage}};
  // An all-reduce between two: each sends B.
  const bool sums = l.options.dtype == Dtype::kBf16 && l.options.fp32_grads;
  const auto element = static_cast<std::int64_t>(sums ? 4 : dtype_size(l.options.dtype));
  if (l.stage.model.tied && l.plan->is_cut() && l.plan->ends_apart())
    all.push_back(
        {"tied weights", kAnyCalls, 2 * l.stage.model.vocab * l.stage.model.hidden * element * l.stage.cp * l.stage.dp});
  return all;
}

std::int64_t linear_flops(const Layout& l, int pp_rank, int cp_rank, int tp_rank) {
  const tensor_parallel::RankParameters p = tensor_parallel::parameters_of_rank(l.stage.model, l.stage.tp, tp_rank);
  const std::string& recompute = l.options.recompute;
  const std::int64_t again = recompute == "full" ? p.matrices : recompute == "selective" ? p.projections : 0;
  const std::int64_t tokens = l.options.micro_batch * l.stage.sequences().length(cp_rank) * l.micro_batches_of_stage();
  std::int64_t flops = 0;
  for (int stage : l.plan->assignment.stages_of(pp_rank)) {
    const std::int64_t layers = l.plan->layers[static_cast<std::size_t>(stage)];
    flops += tokens * layers * (6 * p.matrices + 2 * again);
    if (stage + 1 == l.plan->schedule.stages) flops += tokens * 6 * p.head;
  }
  return flops;
}

}  // namespace ref5d::pipeline
