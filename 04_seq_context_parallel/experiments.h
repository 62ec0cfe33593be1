// The side experiments of lesson 04. Each adds claims with expected and measured values.
#pragma once

#include <string>
#include <vector>

#include "04_seq_context_parallel/run.h"
#include "common/app/output.h"
#include "common/device/timeline.h"

namespace ref5d::seq_context_parallel {

// What the experiments are given.
struct Experiment {
  const Options& options;
  const Lesson& lesson;
  Link link;                  // of virtual time
  bool default_link;          // on which overlap's claims are made
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

// Attention's work by rank and hop: counted, drawn and timed.
void balance_experiment(Experiment& e);
[[nodiscard]] std::vector<OutputFile> balance_traces(const std::string& prefix);
// Messages beside computation and before it, with grouped queries and without.
void overlap_experiment(Experiment& e);
[[nodiscard]] std::vector<OutputFile> overlap_traces(const std::string& prefix);
// What sequence and context parallelism cut, send and keep, side by side; and the kinds of context parallelism.
void compare_experiment(Experiment& e);
// The longest sequence under a cap of memory, on more and more ranks.
void length_experiment(Experiment& e);

}  // namespace ref5d::seq_context_parallel
