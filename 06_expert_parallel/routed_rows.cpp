#include "06_expert_parallel/routed_rows.h"

#include <algorithm>
#include <set>

namespace ref5d::expert_parallel {

namespace {

using Choices = std::vector<std::int32_t>;  // of a token: k experts, -1 for a dropped one

// A replica's micro-batch in one layer: the choices of its tokens, in the micro-batch's order, those that capacity leaves.
std::vector<Choices> choices_of(const Routes& routes, const TokenLayout& l, std::int64_t layer, std::int64_t first_sample) {
  std::vector<Choices> tokens;
  const std::int64_t k = l.moe.top_k, capacity = l.moe.capacity(l.micro_batch * l.seq);
  std::vector<std::int64_t> taken(static_cast<std::size_t>(l.moe.experts));
  for (std::int64_t b = 0; b < l.micro_batch; ++b) {
    const std::vector<std::int32_t>& sample = routes.chosen.at({layer, first_sample + b});
    for (std::int64_t t = 0; t < l.seq; ++t) {
      Choices choices(sample.begin() + t * k, sample.begin() + (t + 1) * k);
      for (std::int32_t& e : choices)
        if (l.moe.capacity_factor > 0 && taken[static_cast<std::size_t>(e)]++ >= capacity) e = -1;
      tokens.push_back(std::move(choices));
    }
  }
  return tokens;
}

// The tokens that each rank of the replica routes, by place in the micro-batch: cp x tp lists.
std::vector<std::vector<std::int64_t>> tokens_of_ranks(const TokenLayout& l) {
  std::vector<std::vector<std::int64_t>> all;
  for (const context_parallel::Places& places : l.sequences.places) {
    std::vector<std::int64_t> here;
    for (std::int64_t b = 0; b < l.micro_batch; ++b)
      for (const std::int32_t place : places) here.push_back(b * l.seq + place);
    for (int t = 0; t < l.tp; ++t) {
      const auto rows = static_cast<std::int64_t>(here.size());
      const Range share = l.expert_tp ? Range{0, rows} : tensor_parallel::share_of(rows, l.tp, t);
      all.emplace_back(here.begin() + share.begin, here.begin() + share.end);
    }
  }
  return all;
}

// Of a group of ranks along ep: node_of(rank), and whom the rank sends what is for a node.
struct NodesOfGroup {
  const std::vector<NodeRanks>& nodes;
  [[nodiscard]] std::size_t node_of(int rank) const {
    std::size_t node = 0;
    while (nodes[node].end <= rank) ++node;
    return node;
  }
  [[nodiscard]] int gateway(std::size_t node, int from) const {
    const int place = from - nodes[node_of(from)].begin;
    return nodes[node].begin + place % (nodes[node].end - nodes[node].begin);
  }
};

// The rank `from` of a group tells every other how many rows it sends to each of its experts; where nodes pass rows on, how
// many copies go to the rank, and inside the node how many rows to each expert.
std::int64_t numbers_told(const TokenLayout& l, const std::vector<NodeRanks>& nodes, int from) {
  if (l.moe.pad_to_capacity || l.ep == 1) return 0;
  const std::int64_t own = experts_of(l.moe.experts, l.ep, from).size();
  if (nodes.empty()) return l.moe.experts - own;
  const NodeRanks& node = nodes[NodesOfGroup{nodes}.node_of(from)];
  const std::int64_t of_node =
      experts_of(l.moe.experts, l.ep, node.end - 1).end - experts_of(l.moe.experts, l.ep, node.begin).begin;
  return l.ep - 1 + of_node - own;
}

// Every expert gets as many rows from a rank that has so many tokens, whatever the choices.
std::int64_t padded_rows_of(const TokenLayout& l, std::int64_t tokens) {
  return std::min(l.moe.capacity(l.micro_batch * l.seq), tokens);
}

// One token's rows, from rank `from` along ep.
void count_token(RoutedRows& rows, const TokenLayout& l, const std::vector<NodeRanks>& nodes, const Choices& choices,
                 int from) {
  std::set<std::size_t> reached;
  const NodesOfGroup group{nodes};
  for (const std::int32_t e : choices) {
    ++rows.routed;
    if (e < 0) continue;
    const int to = rank_of_expert(e, l.moe.experts, l.ep);
    ++rows.kept;
    ++rows.of_rank[static_cast<std::size_t>(to)];
    rows.leaving += to != from && !l.moe.pad_to_capacity ? 1 : 0;
    if (nodes.empty()) continue;
    rows.other_nodes += group.node_of(to) != group.node_of(from) ? 1 : 0;
    rows.inside_nodes += to != group.gateway(group.node_of(to), from) ? 1 : 0;
    reached.insert(group.node_of(to));
  }
  for (const std::size_t node : reached) rows.between_nodes += group.gateway(node, from) != from ? 1 : 0;
}

}  // namespace

// Ranks along tp that cut experts compute each row together.
std::int64_t padded_rows(const TokenLayout& l) {
  std::int64_t of_micro_batch = 0;
  for (const std::vector<std::int64_t>& of_rank : tokens_of_ranks(l))
    of_micro_batch += l.moe.experts * padded_rows_of(l, static_cast<std::int64_t>(of_rank.size()));
  return l.global_batch / l.micro_batch * of_micro_batch / (l.expert_tp ? l.tp : 1);
}

RoutedRows count_rows(const Routes& routes, const TokenLayout& l) {
  RoutedRows rows;
  rows.of_expert.resize(static_cast<std::size_t>(l.layers * l.moe.experts));
  rows.of_rank.resize(static_cast<std::size_t>(l.ep));
  const std::vector<std::vector<std::int64_t>> tokens = tokens_of_ranks(l);
  const std::int64_t of_replica = l.global_batch / l.dp;
  for (const auto& [key, chosen] : routes.chosen) {
    const auto [layer, sample] = key;
    const std::int64_t in_replica = sample % of_replica;
    if (in_replica % l.micro_batch != 0) continue;  // not a micro-batch's first
    const auto replica = static_cast<int>(sample % l.global_batch / of_replica), from = replica % l.ep;  // dp = edp x ep
    const int stage_rank = l.stage_rank(layer, in_replica / l.micro_batch);
    const std::vector<Choices> choices = choices_of(routes, l, layer, sample);
    for (std::size_t r = 0; r < tokens.size(); ++r) {
      const std::size_t group = static_cast<std::size_t>(stage_rank * (l.dp / l.ep) + replica / l.ep) * tokens.size() + r;
      static const std::vector<NodeRanks> kNone;
      const std::vector<NodeRanks>& nodes = l.nodes.empty() ? kNone : l.nodes[group];
      rows.counts += numbers_told(l, nodes, from);
      rows.held += static_cast<std::int64_t>(tokens[r].size());
      if (l.moe.pad_to_capacity)
        rows.leaving += (l.moe.experts - experts_of(l.moe.experts, l.ep, from).size()) *
                        padded_rows_of(l, static_cast<std::int64_t>(tokens[r].size()));
      for (const std::int64_t t : tokens[r]) count_token(rows, l, nodes, choices[static_cast<std::size_t>(t)], from);
    }
    for (const Choices& token : choices)
      for (const std::int32_t e : token)
        if (e >= 0) ++rows.of_expert[static_cast<std::size_t>(layer * l.moe.experts + e)];
  }
  return rows;
}

}  // namespace ref5d::expert_parallel
