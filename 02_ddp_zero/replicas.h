// Which ranks should hold the same.
#pragma once

#include "02_ddp_zero/strategy.h"
#include "common/comm/mesh.h"

namespace ref5d::data_parallel {

// The ranks that hold the same weights as this one, whole or a shard.
[[nodiscard]] Group holders_of_the_same(Mesh& mesh, const StrategyOptions& strategy, int shard_size);

}  // namespace ref5d::data_parallel
