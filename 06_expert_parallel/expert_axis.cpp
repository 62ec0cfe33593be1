#include "06_expert_parallel/expert_axis.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/device/error.h"

namespace ref5d::expert_parallel {

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
