// Runs of a few steps for what they cost, without a comparison.
#pragma once

#include <string>
#include <vector>

#include "common/app/options.h"
#include "common/comm/mesh.h"
#include "common/comm/world.h"
#include "common/device/timeline.h"
#include "common/train/trainer.h"
#include "common/verify/report.h"

namespace ref5d {

struct Measured {
  Report report;                        // loss, traffic, memory: on rank 0
  std::vector<TimelineEntry> timeline;  // of one step; kernels take their medians over the steps
  std::vector<std::string> streams;     // their names
  std::string fingerprint;              // of the weights after the last step, in every bit; on rank 0
  double step_ms = 0;
};

// All ranks call it, with the settings of their part of the layout. Takes `steps` steps from the initial weights.
[[nodiscard]] Measured measure(const std::string& program, const Options& options, const TrainerOptions& settings,
                               std::int64_t steps, World& world, Mesh& mesh);

// Writes a replay of m.timeline as a trace.
void write_virtual_trace(const std::string& path, const Measured& m, const VirtualRun& run);

}  // namespace ref5d
