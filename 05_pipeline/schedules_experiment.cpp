#include <fmt/format.h>

#include <algorithm>

#include "05_pipeline/costs.h"
#include "05_pipeline/experiments.h"
#include "05_pipeline/live.h"
#include "05_pipeline/simulate.h"
#include "common/device/error.h"
#include "common/verify/table.h"

namespace ref5d::pipeline {

namespace {

struct LadderStep {
  const char* what;
  ScheduleOptions options;
};

// From one batch that all ranks but one wait for, to none idle.
std::vector<LadderStep> ladder(const ScheduleOptions& given) {
  const auto with = [&](const char* name, int micro_batches) {
    ScheduleOptions o = given;
    o.name = name;
    o.micro_batches = micro_batches;
    o.group = 0;
    return o;
  };
  const int M = given.micro_batches;
  std::vector<LadderStep> steps{{"the whole batch at once", with("gpipe", 1)}, {"in micro-batches", with("gpipe", M)}};
  steps.push_back({"a backward as soon as it can be", with("1f1b", M)});
  steps.push_back({"several chunks to a rank", with("interleaved", M)});
  steps.push_back({"weights' half later", with("zb-h1", M)});
  steps.push_back({"and more in flight", with("zb-h2", M)});
  steps.push_back({"in a V", with("zb-v", M)});
  steps.push_back({"from both ends", with("dualpipe", M)});
  steps.push_back({"from both ends of a V", with("dualpipev", M)});
  return steps;
}

// The share of a micro-batch's work that a cell of a rank with several stages is of: all schedules do the same work.
double share_of_stage(const Schedule& s) { return static_cast<double>(s.rank_count()) / s.stages; }

struct SimulatedRow {
  Simulation run;
  double share, peak, weight_work, both;  // of what a rank has of the model
  std::int64_t messages = 0;
  double parameters = 1;
};

SimulatedRow simulate_row(const Schedule& s) {
  const Assignment assignment(s);
  const double share = share_of_stage(s);
  SimulatedRow row{simulate(s, uniform_costs(share, share, share)), share, 0, 0, 0};
  for (int r = 0; r < s.rank_count(); ++r) {
    row.peak = std::max(row.peak, share * peak_activations(s, r));
    for (const Live& live : live_after(s, r)) {
      row.weight_work = std::max(row.weight_work, share * live.all_weight_work());
      row.both = std::max(row.both, share * (live.all_activations() + live.all_weight_work()));
    }
  }
  row.parameters = assignment.copies() ? 2 : 1;
  row.messages = 2 * crossings(s);
  return row;
}

}  // namespace

void schedules_experiment(Experiment& e) {
  if (!e.world.is_root()) return;
  const ScheduleOptions& given = e.lesson.schedule;
  std::vector<std::vector<std::string>> table{
      {"", "schedule", "M", "time", "own", "idle", "keeps", "W waits", "both", "messages", "parameters"}};
  std::string left_out;
  for (const LadderStep& step : ladder(given)) {
    Schedule s;
    try {
      s = make_schedule(step.options);
    } catch (const InputError& error) {
      left_out += fmt::format("left out: {}\n", error.what());
      continue;
    }
    const SimulatedRow row = simulate_row(s);
    table.push_back({step.what, step.options.name, fmt::format("{}", s.micro_batches), fmt::format("{:g}", row.run.makespan),
                     fmt::format("{:g}", row.run.cost()), fmt::format("{:.1f}%", 100 * row.run.bubble_rate()),
                     fmt::format("{:g}", row.peak), fmt::format("{:g}", row.weight_work), fmt::format("{:g}", row.both),
                     fmt::format("{}", row.messages), fmt::format("{:g}x", row.parameters)});
    // DualPipe's form is for the two stages' passes that a rank has.
    const std::optional<double> form = closed_bubble(step.options, 1, 1, 1);
    const double unit = step.options.name == "interleaved" || row.parameters == 2 ? 1 : row.share;
    if (form)
      e.report.claims.push_back(
          make_claim(fmt::format("schedules, {} of {} micro-batches: idle time, if F, I and W take 1", s.name, s.micro_batches),
                     *form * unit, scheduled_bubble(step.options, row.run), 1e-9));
  }
  if (e.prints())
    fmt::print("\n{} ranks, F, I and W of a rank's layers 1, B 2; keeps and W waits in micro-batches of a rank's layers\n{}{}",
               given.ranks, format_table(table, "llrrrrrrrrr"), left_out);
}

}  // namespace ref5d::pipeline
