// The side experiments of lesson 03. Each adds claims with expected and measured values.
#pragma once

#include <string>
#include <vector>

#include "03_tensor_parallel/run.h"
#include "common/app/output.h"
#include "common/device/timeline.h"

namespace ref5d::tensor_parallel {

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

// Since the ledger was reset: this rank's calls over the axis, and on rank 0 of it the bytes that all its ranks sent.
[[nodiscard]] TrafficCount sent_by_axis(Experiment& e);

// A product small enough to follow by hand, cut both ways, and an embedding of six entries.
void numbers_experiment(Experiment& e);
// Two linear layers with GELU between them, cut in every order.
void pairs_experiment(Experiment& e);
// The loss from logits that are gathered, and from logits that are not.
void loss_experiment(Experiment& e);
// Sums beside weight gradients: virtual time on a link.
void overlap_experiment(Experiment& e);
// The files that it writes where Experiment::virtual_trace is `prefix`.
[[nodiscard]] std::vector<OutputFile> virtual_traces(const std::string& prefix);
// What of a layer's activations more ranks divide, and the embedding of 128,256 entries.
void calculator_experiment(Experiment& e);

}  // namespace ref5d::tensor_parallel
