// What a rank keeps while a schedule runs.
#pragma once

#include <vector>

#include "05_pipeline/schedule.h"

namespace ref5d::pipeline {

// After some cell of a rank, by stage: micro-batches of which forward's activations are kept (from F to B or I), and those of
// which the work of the weight gradients is (from I to W).
struct Live {
  std::vector<int> activations, weight_work;  // [stage]
  [[nodiscard]] int all_activations() const;
  [[nodiscard]] int all_weight_work() const;
};
// After each of a rank's cells. F&B changes both at once: its forward's stage has one more, its backward's one less.
[[nodiscard]] std::vector<Live> live_after(const Schedule& schedule, int rank);
// The most activations that a rank keeps at once, in pairs of stage and micro-batch.
[[nodiscard]] int peak_activations(const Schedule& schedule, int rank);

}  // namespace ref5d::pipeline
