#include "06_expert_parallel/expert_axis.h"

#include <fmt/format.h>

#include <algorithm>

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

std::vector<NodeRanks> nodes_along(const Communicator& ep) {
  std::vector<NodeRanks> nodes;
  std::vector<int> seen;
  for (int r = 0; r < ep.size(); ++r) {
    const int node = world().node(ep.group().ranks[static_cast<std::size_t>(r)]);
    if (!seen.empty() && seen.back() == node) {
      ++nodes.back().end;
      continue;
    }
    if (std::find(seen.begin(), seen.end(), node) != seen.end())
      throw InputError(
          "--dispatcher hierarchical needs the ranks of a node to be neighbours along --ep; start the ranks host by host, or "
          "use "
          "alltoall");
    seen.push_back(node);
    nodes.push_back({r, r + 1});
  }
  return nodes;
}

ExpertAxis::ExpertAxis(Mesh& mesh, const ExpertParallelOptions& options, std::int64_t experts)
    : options_(options), experts_(experts), communicator_(mesh["ep"]) {
  if (experts < size())
    throw InputError(fmt::format("--ep {} needs at least as many experts; the model has {}", size(), experts));
  if (options.dispatcher == "hierarchical") {
    nodes_ = nodes_along(communicator_);
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
