// Which ranks should hold the same.
#pragma once

#include "02_ddp_zero/strategy.h"
#include "common/comm/mesh.h"

namespace ref5d::data_parallel {

// The axes over which gradients are summed and state is sharded: those along which ranks have other tokens. "dp", and with
// context parallelism "dp*cp" (pitfall P04: a program that wraps dp alone never reduces where dp is 1). With DualPipe also the
// two ranks that have the same stages, which compute other micro-batches (P46).
[[nodiscard]] std::string gradient_axes(const Mesh& mesh);
// Those of experts: "edp", "edp*cp". Tokens of all ep ranks have come to the rank that has the expert, so its gradient lacks
// those of other ranks with the same experts alone, and no number of ranks divides it (P47). Without ep the same as above.
[[nodiscard]] std::string expert_axes(const Mesh& mesh);
// The ranks that share one copy of experts where shard_size share one of the other weights. It divides both: the ranks with the
// same experts, which are cut into groups of that size, and shard_size, so that no copy of experts is over more ranks than one
// of the rest.
[[nodiscard]] int expert_shard_size(const Mesh& mesh, int shard_size);
// Whether traffic over this axis, or a part of it, is theirs.
[[nodiscard]] bool is_data_parallel(const std::string& axis);

// The ranks that share state summed over the axes. shard_size: of hsdp.
[[nodiscard]] StateRanks state_ranks(Mesh& mesh, const StrategyOptions& strategy, const std::string& axes, int shard_size);

// The ranks that hold the same weights as this one, whole or a shard: ordinary ones, or experts.
[[nodiscard]] Group holders_of_the_same(Mesh& mesh, const StrategyOptions& strategy, int shard_size, bool experts = false);

}  // namespace ref5d::data_parallel
