// The side experiments of lesson 05. Each adds claims with expected and measured values.
#pragma once

#include <string>
#include <vector>

#include "05_pipeline/run.h"
#include "common/app/output.h"
#include "common/device/timeline.h"

namespace ref5d::pipeline {

// What the experiments are given.
struct Experiment {
  const Options& options;
  const Lesson& lesson;
  Link link;                  // of virtual time
  std::string virtual_trace;  // a path that the timelines' begin with; empty: none
  World& world;
  Mesh& mesh;
  Report& report;
  [[nodiscard]] bool prints() const { return world.is_root() && !options.quiet; }
};

// "none", the names below, "all".
[[nodiscard]] std::vector<std::string> experiment_names();
// Runs the named one and appends its claims to the report; tables go to stdout. All ranks call it.
void run_experiments(const std::string& name, Experiment& experiment);
// The files that it writes where Experiment::virtual_trace is `prefix`.
[[nodiscard]] std::vector<OutputFile> virtual_traces(const std::string& name, const std::string& prefix);

// Every schedule for these ranks and micro-batches: what it idles and keeps, from one batch in flight to none idle.
void schedules_experiment(Experiment& e);
// The Zero Bubble paper's bubble rates, from its measured times.
void zero_bubble_experiment(Experiment& e);
// Sends without a buffer: each schedule with its messages in the naive order, and in the runtime's.
void deadlock_experiment(Experiment& e);
// Every schedule in virtual time: each operation's measured cost, replayed through the schedule.
void bubble_experiment(Experiment& e);
// What a pipeline sends, beside tensor parallelism and ZeRO-3 on as many ranks.
void traffic_experiment(Experiment& e);

}  // namespace ref5d::pipeline
