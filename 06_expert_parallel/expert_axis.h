// The expert-parallel axis as the dispatchers see it, and the mistakes that can be planted.
//
// Experts are in contiguous shares over the ranks of the axis, in the order of their numbers, sizes that differ by one at most:
//
//   64 experts over 8 ranks:   0..7 | 8..15 | 16..23 | ... | 56..63      expert 12 is on rank 1, expert 60 on rank 7
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "03_tensor_parallel/cut.h"
#include "common/comm/mesh.h"
#include "common/device/device.h"

namespace ref5d::expert_parallel {

using tensor_parallel::Range;

// The experts of a rank.
[[nodiscard]] Range experts_of(std::int64_t experts, int ranks, int rank);
// The rank of an expert.
[[nodiscard]] int rank_of_expert(std::int64_t expert, std::int64_t experts, int ranks);

// Mistakes to show (--sabotage).
struct Faults {
  bool router_unsummed = false;  // tp: a rank keeps its own rows' part of the router's gradient (P50)
  bool aux_per_rank = false;     // each rank balances its own tokens (P48)
  bool drop_by_rank = false;     // each rank fills an expert's capacity by its own order (P53)
  bool rows_by_sender = false;   // experts take rows in the order in which they arrived
  bool other_weights = false;    // a token's weights are renormalised where they should not be, or the reverse (P51)
  bool own_load = false;         // correction biases follow the load of a rank's own tokens
};

struct ExpertParallelOptions {
  std::string dispatcher = "alltoall";  // alltoall | hierarchical | allgather
  bool expert_tp = false;  // tp cuts every expert; else each rank along tp takes whole experts and some of the tokens
  bool overlap = true;     // shared experts on a stream of their own
  Faults faults;
};

[[nodiscard]] std::vector<std::string> dispatcher_names();

// The ranks of a node along the axis, next to each other.
struct NodeRanks {
  int begin, end;
};

// The nodes of ranks of the world, in their order along ep. InputError if those of a node are not next to each other.
[[nodiscard]] std::vector<NodeRanks> nodes_of(const std::vector<int>& ranks);
// Of every group of ranks along ep, in the order of their places along pp, edp, cp and tp: they may lie on nodes differently.
[[nodiscard]] std::vector<std::vector<NodeRanks>> nodes_of_groups(const Mesh& mesh);

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
