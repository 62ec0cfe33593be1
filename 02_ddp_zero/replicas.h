// Whether ranks that should hold the same do.
#pragma once

#include <string>
#include <vector>

#include "02_ddp_zero/strategy.h"
#include "common/comm/mesh.h"

namespace ref5d::data_parallel {

// The ranks that hold the same weights as this one, whole or a shard.
[[nodiscard]] Group holders_of_the_same(Mesh& mesh, const StrategyOptions& strategy, int shard_size);

// Of all their bits: equal for equal tensors, and with all likelihood only then.
[[nodiscard]] std::string fingerprint(const std::vector<HostTensor>& tensors);
// Whether tensors that the ranks of a group should hold alike are equal in every bit, on all of them.
[[nodiscard]] bool equal_on_all(const Group& group, const std::vector<Tensor>& tensors, Stream& stream);

}  // namespace ref5d::data_parallel
