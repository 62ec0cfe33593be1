#include "06_expert_parallel/node_ranks.h"

#include <set>

#include "common/comm/world.h"
#include "common/device/error.h"

namespace ref5d::expert_parallel {

std::vector<NodeRanks> nodes_of(const std::vector<int>& ranks) {
  std::vector<NodeRanks> nodes;
  std::set<int> seen;
  int last = -1;
  for (int r = 0; r < static_cast<int>(ranks.size()); ++r) {
    const int node = world().node(ranks[static_cast<std::size_t>(r)]);
    if (node == last) {
      ++nodes.back().end;
      continue;
    }
    if (!seen.insert(last = node).second)
      throw InputError(
          "--dispatcher hierarchical needs a node's ranks to be neighbours along --ep; start the ranks host by host, or use "
          "alltoall");
    nodes.push_back({r, r + 1});
  }
  return nodes;
}

std::vector<std::vector<NodeRanks>> nodes_of_groups(const Mesh& mesh) {
  const auto size = [&](const char* axis) { return static_cast<int>(mesh.size(axis)); };
  const int outside = size("pp") * size("edp"), ep = size("ep"), inside = size("cp") * size("tp");
  std::vector<std::vector<NodeRanks>> groups;
  for (int outer = 0; outer < outside; ++outer) {
    for (int inner = 0; inner < inside; ++inner) {
      std::vector<int> ranks;
      for (int e = 0; e < ep; ++e) {
        const int place = (outer * ep + e) * inside + inner;
        ranks.push_back(mesh.everyone().ranks[static_cast<std::size_t>(place)]);
      }
      groups.push_back(nodes_of(ranks));
    }
  }
  return groups;
}

}  // namespace ref5d::expert_parallel
