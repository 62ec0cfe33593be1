// The side experiments of lesson 06. Each adds claims with expected and measured values.
#pragma once

#include <string>
#include <vector>

#include "06_expert_parallel/run.h"
#include "common/app/output.h"
#include "common/device/timeline.h"

namespace ref5d::expert_parallel {

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

// The lesson on a mesh of an experiment's own: what the user chose for other layouts does not fit there.
[[nodiscard]] Lesson lesson_of_own(const std::string& dispatcher);

// "none", the names below, "all".
[[nodiscard]] std::vector<std::string> experiment_names();
// The files that the named one writes where Experiment::virtual_trace is `prefix`.
[[nodiscard]] std::vector<OutputFile> virtual_traces(const std::string& name, const std::string& prefix);
// Runs the named one and appends its claims to the report; tables go to stdout. All ranks call it.
void run_experiments(const std::string& name, Experiment& experiment);

// The arithmetic of large models: parameters in all and those that a token uses, and where experts and tokens go.
void numbers_experiment(Experiment& e);
// A router that sends 80% of the tokens to one expert: work and memory of the busiest rank, before and after each cure.
void hot_expert_experiment(Experiment& e);
// The dispatchers, with experts anywhere and on one node, and tensor parallelism inside experts: what they send.
void ways_experiment(Experiment& e);
// Capacity and its buffers of a fixed size, against no capacity.
void capacity_experiment(Experiment& e);
// What messages along ep hide behind, in virtual time.
void overlap_experiment(Experiment& e);
// 40 runs of the layout, whose weights must be the same bits.
void repeat_experiment(Experiment& e);

}  // namespace ref5d::expert_parallel
