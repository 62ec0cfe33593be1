// The arithmetic of big mixtures of experts: parameters of a model, a token and a rank; rows that a token sends; nodes that it
// reaches.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace ref5d::expert_parallel {

// Multi-head latent attention (DeepSeek-V2, section 2.1): queries, and keys with values, pass through a narrow latent that is
// normalised. A head's key has a part without position and one with RoPE, which all heads share.
struct LatentAttention {
  std::int64_t q_rank, kv_rank;                // widths of the two latents
  std::int64_t nope_dim, rope_dim, value_dim;  // of a head
};

// What the parameters of a model follow from; the letters are notation.md's.
struct ModelSizes {
  std::string name;
  std::int64_t vocab, hidden, layers;  // V, H, L
  std::int64_t heads, kv_heads;
  std::optional<LatentAttention> latent;         // else grouped queries, with heads of H / heads
  std::int64_t dense_layers = 0, dense_ffn = 0;  // the first layers, which have one MLP of so many columns
  std::int64_t experts, top_k, ffn;              // of every other layer: E experts of F columns, of which a token uses top_k,
  std::int64_t shared_experts = 0;               // and so many more that it uses always

  [[nodiscard]] std::int64_t expert_layers() const { return layers - dense_layers; }
  [[nodiscard]] std::int64_t expert_parameters() const { return 3 * hidden * ffn; }  // gate, up and down of one expert
};

// DeepSeek-V3 technical report, section 4.2, without its module for multi-token prediction.
[[nodiscard]] ModelSizes deepseek_v3();
// Mixtral of Experts (Jiang et al. 2024), table 1: Mixtral 8x7B.
[[nodiscard]] ModelSizes mixtral_8x7b();

// Parameters by part. The embedding and the head are two matrices; a correction bias counts as none.
struct ParameterParts {
  std::int64_t embedding = 0, head = 0, attention = 0, dense_mlps = 0, routed = 0, shared = 0, routers = 0, norms = 0;
  [[nodiscard]] std::int64_t without_routed() const {
    return embedding + head + attention + dense_mlps + shared + routers + norms;
  }
  [[nodiscard]] std::int64_t all() const { return without_routed() + routed; }
};
[[nodiscard]] ParameterParts parameters(const ModelSizes& m);
// Those that one token meets: of the routed experts top_k a layer. Publishers differ about the embedding, of which a token only
// looks up one row: Mixtral's 12.9B have all of it, DeepSeek-V3's 37B none (with it they would be 38B).
[[nodiscard]] ParameterParts active_parameters(const ModelSizes& m);
// Of one of the ranks that share out the routed experts (experts_of), and have all else whole.
[[nodiscard]] std::int64_t parameters_of_rank(const ModelSizes& m, int ranks, int rank);

// Rows that a token has sent in one of four ways, added up over all ranks: dispatch, combine, and the backward of either. A row
// is H e bytes. In expectation for uniform routing of tokens that are spread evenly over N ranks.
//
//   all-to-all       k (N-1)/N         a row for each choice that is on another rank, however the experts are cut
//   hierarchical     M (n-1)/n         between n nodes: M of them have experts of the token
//                    k (R-1)/R         and inside a node of R ranks
//   all-gather       N-1               whatever the choices
[[nodiscard]] double all_to_all_rows(std::int64_t top_k, int ranks);
[[nodiscard]] double all_gather_rows(int ranks);
// Between nodes, if a token's experts are on `mean_nodes` of them, its own node included as often as any.
[[nodiscard]] double rows_to_other_nodes(double mean_nodes, int nodes);
// Rows that each of N ranks sends for a token in one pass if they cut every expert instead: an all-reduce of y forward, of dx
// backward, 2 (N-1)/N. All of the ranks have the token, so together they send N times as much.
[[nodiscard]] double tensor_parallel_rows(int ranks);

// A choice of top_k experts, which are shared out over nodes as over ranks, on top_nodes of the nodes at most.
struct NodeChoice {
  std::int64_t experts;
  int nodes;
  std::int64_t top_k;
  int top_nodes;
  [[nodiscard]] bool limited() const { return top_nodes < nodes; }
};

// The number of different nodes of a token: its mean, and its standard deviation over tokens.
struct NodesPerToken {
  double mean, deviation;
};
// If every set of top_k experts is as likely as any other; with a limit top_nodes of the nodes are drawn by lot, and the
// experts from all of theirs. A node of s of E experts is missed with probability C(E-s, k) / C(E, k), so
//   M = n (1 - C(E - E/n, k) / C(E, k)).
// std::logic_error for a limit if nodes does not divide experts.
[[nodiscard]] NodesPerToken expected_nodes(const NodeChoice& c);

// The top_k experts of greatest score [E], the greatest first, on the top_nodes nodes whose two greatest scores sum to most
// (DeepSeek-V3, section 2.1.2, where the k / top_nodes = 8 / 4 greatest count). Of equal values the lower index comes first.
[[nodiscard]] std::vector<int> choose_on_nodes(std::span<const double> scores, const NodeChoice& c);

// Which nodes a token may use where they are limited.
enum class NodeRule { kScores, kLot };

struct NodeCounts {
  std::vector<std::int64_t> tokens;  // by the number of their nodes, from 0 on
  double kept = 0;                   // a token's experts that it would have without a limit, on average

  [[nodiscard]] double mean() const;
  [[nodiscard]] int most() const;
};
// Tokens whose scores are independent and uniform: counted, not computed. The same seed, the same tokens, whatever the choice.
[[nodiscard]] NodeCounts simulate_nodes(const NodeChoice& c, NodeRule rule, int tokens, std::uint64_t seed);

}  // namespace ref5d::expert_parallel
