// The side experiments of lesson 06. Each adds claims with expected and measured values.
#pragma once

#include <string>
#include <vector>

#include "06_expert_parallel/run.h"

namespace ref5d::expert_parallel {

// What the experiments are given.
struct Experiment {
  const Options& options;
  const Lesson& lesson;
  World& world;
  Mesh& mesh;
  Report& report;
  [[nodiscard]] bool prints() const { return world.is_root() && !options.quiet; }
};

// "none", the names below, "all".
[[nodiscard]] std::vector<std::string> experiment_names();
// Runs the named one and appends its claims to the report; tables go to stdout. All ranks call it.
void run_experiments(const std::string& name, Experiment& experiment);

// The arithmetic of large models: parameters in all and those that a token uses, and where experts and tokens go.
void numbers_experiment(Experiment& e);

}  // namespace ref5d::expert_parallel
