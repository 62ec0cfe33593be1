// Which ranks along ep are on one node.
#pragma once

#include <vector>

#include "common/comm/mesh.h"

namespace ref5d::expert_parallel {

// The ranks of a node along the axis, next to each other.
struct NodeRanks {
  int begin, end;
};

// The nodes of ranks of the world, in their order along ep. InputError if those of a node are not next to each other.
[[nodiscard]] std::vector<NodeRanks> nodes_of(const std::vector<int>& ranks);
// Of every group of ranks along ep, in the order of their places along pp, edp, cp and tp: they may lie on nodes differently.
[[nodiscard]] std::vector<std::vector<NodeRanks>> nodes_of_groups(const Mesh& mesh);

}  // namespace ref5d::expert_parallel
