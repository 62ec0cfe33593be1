// Runs of a few steps for what they cost, without a comparison.
#pragma once

#include "02_ddp_zero/strategy.h"
#include "common/app/options.h"
#include "common/comm/mesh.h"
#include "common/device/timeline.h"
#include "common/verify/report.h"

namespace ref5d::data_parallel {

struct Measured {
  Report report;                        // loss, traffic, memory: on rank 0
  std::vector<TimelineEntry> timeline;  // of one step; kernels take their medians over the steps
  std::vector<std::string> streams;     // their names
  std::string fingerprint;              // of the weights after the last step, in every bit; on rank 0
  double step_ms = 0;
};

// All ranks call it. Takes `steps` steps from the initial weights.
[[nodiscard]] Measured measure(const Options& options, const StrategyOptions& strategy, int shard_size, std::int64_t steps,
                               World& world, Mesh& mesh);

}  // namespace ref5d::data_parallel
