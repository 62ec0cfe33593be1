// What pipeline parallelism costs, as formulas.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "04_seq_context_parallel/costs.h"
#include "05_pipeline/lesson.h"
#include "05_pipeline/plan.h"
#include "05_pipeline/simulate.h"

namespace ref5d::pipeline {

// What a run's costs follow from.
struct Layout {
  Options options;  // grad_accum: all micro-batches of a step
  std::shared_ptr<const Plan> plan;
  ScheduleOptions schedule;
  std::int64_t runs = 1;               // of the schedule in a step
  seq_context_parallel::Layout stage;  // how layers are cut

  [[nodiscard]] int ranks() const { return plan->schedule.rank_count(); }
  // Micro-batches of a step that pass a stage on one of the ranks that have it.
  [[nodiscard]] std::int64_t micro_batches_of_stage() const {
    return runs * plan->schedule.micro_batches / (plan->assignment.copies() ? 2 : 1);
  }
};

// Idle time of a rank where F, I and W take these times, in closed form; B takes I and W, F&B all three. Of the published
// schedules, with micro-batches enough for it; of others nothing.
//
// Sources: Huang et al. 2019 (GPipe); Narayanan et al. 2021 (interleaved); Qi et al. 2023, "Zero Bubble Pipeline Parallelism",
// tables 2 and 3; DeepSeek-V3's technical report, table 2 (whose backward is the whole one).
[[nodiscard]] std::optional<double> closed_bubble(const ScheduleOptions& schedule, double forward, double input, double weight);
// The most micro-batches of which a rank keeps activations at once, each of all of the rank's layers: with v chunks one chunk
// of a micro-batch counts 1/v. Of the published schedules with micro-batches enough for it; of others nothing.
[[nodiscard]] std::optional<double> closed_peak(const ScheduleOptions& schedule, int rank);

// The most passes of a stage of which a rank keeps activations or, later, the work of the weights' gradients, at once: of the
// zero-bubble schedules with micro-batches enough for it.
[[nodiscard]] std::optional<std::int64_t> closed_peak_of_both(const ScheduleOptions& schedule);
// The same idle time as closed_bubble's of a simulated run: of the rank that is idle longest with DualPipe, of any with others.
[[nodiscard]] double scheduled_bubble(const ScheduleOptions& schedule, const Simulation& run);

// How often micro-batches cross from one rank to another in forward, in a run of the schedule; in backward as often.
[[nodiscard]] std::int64_t crossings(const Schedule& schedule);
// Bytes of one boundary, of all ranks of a stage's cp and tp axes together: with tensor parallelism alone each has all of it.
[[nodiscard]] std::int64_t boundary_bytes(const Layout& layout);
// What the pp axis sends in one step: bytes of all ranks.
[[nodiscard]] std::vector<PhaseTraffic> traffic_of_pp(const Layout& layout);

// Flops of the linear layers of a rank of these coordinates in a step.
[[nodiscard]] std::int64_t linear_flops(const Layout& layout, int pp_rank, int cp_rank, int tp_rank);

}  // namespace ref5d::pipeline
