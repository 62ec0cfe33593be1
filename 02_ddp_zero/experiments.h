// The side experiments of lesson 02. Each adds claims with expected and measured values.
#pragma once

#include <string>
#include <vector>

#include "02_ddp_zero/ddp_zero.h"
#include "common/app/output.h"

namespace ref5d::data_parallel {

// What the experiments are given.
struct Experiment {
  const Options& options;
  const Lesson& lesson;
  double link_mbit, link_latency_us;  // of virtual time
  bool claims_overlap;                // on the default link, with the default buckets
  std::string virtual_trace;          // a path that the timelines' begin with; empty: none
  World& world;
  Mesh& mesh;
  Report& report;
  [[nodiscard]] bool prints() const { return world.is_root() && !options.quiet; }
};

// "none", the names below, "all".
[[nodiscard]] std::vector<std::string> experiment_names();
// Runs the named one and appends its claims to the report; tables go to stdout. All ranks call it.
void run_experiments(const std::string& name, Experiment& experiment);

// Every strategy beside the others: what it sends, what it holds, how long a step takes here.
void compare_experiment(Experiment& e);
// Many small reductions against few large ones.
void buckets_experiment(Experiment& e);
// Communication beside computation: virtual time on a link.
void overlap_experiment(Experiment& e);
// The files that it writes where Experiment::virtual_trace is `prefix`.
[[nodiscard]] std::vector<OutputFile> virtual_traces(const std::string& prefix);
// Bytes by stage: the ZeRO paper's table, and 8 billion parameters on 8 devices.
void calculator_experiment(Experiment& e);

}  // namespace ref5d::data_parallel
