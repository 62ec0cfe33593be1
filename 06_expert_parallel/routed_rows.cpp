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

int node_of(const TokenLayout& l, int rank) {
  int node = 0;
  while (l.nodes[static_cast<std::size_t>(node)].end <= rank) ++node;
  return node;
}

// Every expert gets as many rows from a rank, whatever the choices.
void count_padded(RoutedRows& rows, const TokenLayout& l, std::int64_t tokens, int from) {
  const std::int64_t each = std::min(l.moe.capacity(l.micro_batch * l.seq), tokens);
  rows.padded += l.moe.experts * each;
  rows.leaving += (l.moe.experts - experts_of(l.moe.experts, l.ep, from).size()) * each;
}

// One token's rows, from rank `from` along ep.
void count_token(RoutedRows& rows, const TokenLayout& l, const Choices& choices, int from) {
  std::set<int> nodes;
  for (const std::int32_t e : choices) {
    ++rows.routed;
    if (e < 0) continue;
    const int to = rank_of_expert(e, l.moe.experts, l.ep);
    ++rows.kept;
    ++rows.of_rank[static_cast<std::size_t>(to)];
    rows.leaving += to != from && !l.moe.pad_to_capacity ? 1 : 0;
    if (l.nodes.empty()) continue;
    rows.other_nodes += node_of(l, to) != node_of(l, from) ? 1 : 0;
    nodes.insert(node_of(l, to));
  }
  for (const int node : nodes) {
    const NodeRanks ranks = l.nodes[static_cast<std::size_t>(node)];
    const int place = from - l.nodes[static_cast<std::size_t>(node_of(l, from))].begin;
    const int gateway = ranks.begin + place % (ranks.end - ranks.begin);
    rows.between_nodes += gateway != from ? 1 : 0;
    for (const std::int32_t e : choices) {
      const int to = e < 0 ? -1 : rank_of_expert(e, l.moe.experts, l.ep);
      rows.inside_nodes += to >= ranks.begin && to < ranks.end && to != gateway ? 1 : 0;
    }
  }
}

}  // namespace

RoutedRows count_rows(const Routes& routes, const TokenLayout& l) {
  RoutedRows rows;
  rows.of_expert.resize(static_cast<std::size_t>(l.layers * l.moe.experts));
  rows.of_rank.resize(static_cast<std::size_t>(l.ep));
  const std::vector<std::vector<std::int64_t>> tokens = tokens_of_ranks(l);
  const std::int64_t of_replica = l.global_batch / l.dp;
  for (const auto& [key, chosen] : routes.chosen) {
    const auto [layer, sample] = key;
    const std::int64_t in_batch = sample % l.global_batch;
    if (in_batch % of_replica % l.micro_batch != 0) continue;         // not a micro-batch's first
    const int from = static_cast<int>(in_batch / of_replica) % l.ep;  // dp = edp x ep
    const std::vector<Choices> choices = choices_of(routes, l, layer, sample);
    for (const std::vector<std::int64_t>& of_rank : tokens) {
      ++rows.trips;
      rows.held += static_cast<std::int64_t>(of_rank.size());
      if (l.moe.pad_to_capacity) count_padded(rows, l, static_cast<std::int64_t>(of_rank.size()), from);
      for (const std::int64_t t : of_rank) count_token(rows, l, choices[static_cast<std::size_t>(t)], from);
    }
    for (const Choices& token : choices)
      for (const std::int32_t e : token)
        if (e >= 0) ++rows.of_expert[static_cast<std::size_t>(layer * l.moe.experts + e)];
  }
  return rows;
}

}  // namespace ref5d::expert_parallel
