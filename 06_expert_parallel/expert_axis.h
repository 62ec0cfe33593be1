// The expert-parallel axis as the dispatchers see it.
#pragma once

#include <memory>
#include <vector>

#include "06_expert_parallel/expert_options.h"
#include "06_expert_parallel/expert_shares.h"
#include "06_expert_parallel/node_ranks.h"
#include "common/comm/mesh.h"
#include "common/device/device.h"

namespace ref5d::expert_parallel {

// Shared by all layers of one model on one rank.
class ExpertAxis {
 public:
  // The axis "ep" of a mesh that outlives this. InputError, alike on all ranks, if a rank would have no expert, or if the
  // dispatcher is hierarchical and a node's ranks are not next to each other along the axis.
  ExpertAxis(Mesh& mesh, const ExpertParallelOptions& options, std::int64_t experts);

  [[nodiscard]] int size() const { return communicator_.size(); }
  [[nodiscard]] int rank() const { return communicator_.rank(); }
  [[nodiscard]] const ExpertParallelOptions& options() const { return options_; }
  [[nodiscard]] const Faults& faults() const { return options_.faults; }
  [[nodiscard]] std::int64_t experts() const { return experts_; }
  [[nodiscard]] Range experts_of(int rank) const { return expert_parallel::experts_of(experts_, size(), rank); }
  // On which all of the axis's communication runs, so that it has one order.
  [[nodiscard]] Stream& stream() { return *stream_; }
  [[nodiscard]] Communicator& communicator() { return communicator_; }
  [[nodiscard]] const std::vector<NodeRanks>& nodes() const { return nodes_; }
  // The place of a rank's node among them.
  [[nodiscard]] int node_of(int rank) const;
  // The ranks of this rank's node.
  [[nodiscard]] Communicator& node() { return *node_; }

 private:
  ExpertParallelOptions options_;
  std::int64_t experts_;
  Communicator& communicator_;
  std::vector<NodeRanks> nodes_;
  Communicator* node_ = nullptr;
  std::unique_ptr<Stream> stream_;
};

}  // namespace ref5d::expert_parallel
