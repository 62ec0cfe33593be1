// Which ranks should hold the same.
#pragma once

#include "02_ddp_zero/strategy.h"
#include "common/comm/mesh.h"

namespace ref5d::data_parallel {

// The axes over which gradients are summed and state is sharded: those along which ranks have other tokens. "dp", and with
// context parallelism "dp*cp" (pitfall P04: a program that wraps dp alone never reduces where dp is 1). With DualPipe also the
// two ranks that have the same stages, which compute other micro-batches (P46).
[[nodiscard]] std::string gradient_axes(const Mesh& mesh);
// Whether traffic over this axis, or a part of it, is theirs.
[[nodiscard]] bool is_data_parallel(const std::string& axis);

// The ranks that hold the same weights as this one, whole or a shard.
[[nodiscard]] Group holders_of_the_same(Mesh& mesh, const StrategyOptions& strategy, int shard_size);

}  // namespace ref5d::data_parallel
