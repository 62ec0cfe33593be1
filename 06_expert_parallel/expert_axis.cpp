#include "06_expert_parallel/expert_axis.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "common/comm/world.h"
#include "common/device/error.h"

namespace ref5d::expert_parallel {

Range experts_of(std::int64_t experts, int ranks, int rank) { return tensor_parallel::share_of(experts, ranks, rank); }

int rank_of_expert(std::int64_t expert, std::int64_t experts, int ranks) {
  int rank = 0;
  while (experts_of(experts, ranks, rank).end <= expert) ++rank;
  return rank;
}

std::vector<std::string> dispatcher_names() { return {"alltoall", "hierarchical", "allgather"}; }

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
          "--dispatcher hierarchical needs the ranks of a node to be neighbours along --ep; start the ranks host by host, or "
          "use "
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

ExpertAxis::ExpertAxis(Mesh& mesh, const ExpertParallelOptions& options, std::int64_t experts)
    : options_(options), experts_(experts), communicator_(mesh["ep"]) {
  if (experts < size())
    throw InputError(fmt::format("--ep {} needs at least as many experts; the model has {}", size(), experts));
  if (options.dispatcher == "hierarchical") {
    (void)nodes_of_groups(mesh);  // which all ranks refuse alike
    nodes_ = nodes_of(communicator_.group().ranks);
    const NodeRanks own = nodes_[static_cast<std::size_t>(node_of(rank()))];
    node_ = &mesh.subgroup("ep", own.begin, own.end);
  }
  // On the CPU the newest stream goes first, and communication should: so the one that computes must be there already.
  (void)device().compute();
  stream_ = std::make_unique<Stream>("ep");
}

int ExpertAxis::node_of(int rank) const {
  const auto found = std::find_if(nodes_.begin(), nodes_.end(), [&](const NodeRanks& n) { return rank < n.end; });
  return static_cast<int>(found - nodes_.begin());
}

}  // namespace ref5d::expert_parallel
