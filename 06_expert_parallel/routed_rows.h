// How many rows have to travel, from nothing but the choices of the tokens and the layout: every token is put on its rank,
// every choice on its expert's, and what is not the same rank is counted. No dispatcher takes part in it.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "04_seq_context_parallel/sequence_layout.h"
#include "06_expert_parallel/expert_shares.h"
#include "06_expert_parallel/node_ranks.h"
#include "common/model/config.h"
#include "common/model/route_log.h"

namespace ref5d::expert_parallel {

// Where the tokens of a run are.
struct TokenLayout {
  MoeConfig moe;
  std::int64_t layers = 0, seq = 0, micro_batch = 0, global_batch = 0;
  int dp = 1, ep = 1, tp = 1;
  bool expert_tp = false;
  context_parallel::SequenceLayout sequences;  // over cp
  // Of --dispatcher hierarchical, the nodes of every group of ranks along ep (nodes_of_groups), else empty; and the place along
  // pp of the rank that computes a layer for a micro-batch of a replica's step.
  std::vector<std::vector<NodeRanks>> nodes;
  std::function<int(std::int64_t layer, std::int64_t micro_batch)> stage_rank = [](auto, auto) { return 0; };
};

// Rows, summed over all ranks, layers and samples in the routes.
struct RoutedRows {
  std::int64_t routed = 0;              // choices of all tokens
  std::int64_t kept = 0;                // that were not dropped
  std::int64_t leaving = 0;             // of these, to another rank, with padding: what alltoall moves in each of the four ways
  std::int64_t between_nodes = 0;       // hierarchical: copies to the rank of another node,
  std::int64_t inside_nodes = 0;        // and rows from there to another rank of the node
  std::int64_t other_nodes = 0;         // choices of experts on other nodes: what alltoall moves between nodes
  std::int64_t held = 0;                // rows x ranks that route them: R of each rank
  std::int64_t counts = 0;              // numbers of rows that ranks tell each other
  std::vector<std::int64_t> of_expert;  // [L x E] kept
  std::vector<std::int64_t> of_rank;    // [ep] kept rows that a rank's experts compute
};
// Those that all experts compute in a layer of one step with MoeConfig::pad_to_capacity.
[[nodiscard]] std::int64_t padded_rows(const TokenLayout& layout);
[[nodiscard]] RoutedRows count_rows(const Routes& routes, const TokenLayout& layout);

}  // namespace ref5d::expert_parallel
