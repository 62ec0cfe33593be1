// Runs of a few steps for what a strategy costs, without a comparison.
#pragma once

#include "02_ddp_zero/strategy.h"
#include "common/app/measure.h"

namespace ref5d::data_parallel {

// All ranks call it. Takes `steps` steps from the initial weights.
[[nodiscard]] Measured measure(const Options& options, const StrategyOptions& strategy, int shard_size, std::int64_t steps,
                               World& world, Mesh& mesh);

}  // namespace ref5d::data_parallel
