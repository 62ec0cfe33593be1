#include "06_expert_parallel/calculator.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>

#include "06_expert_parallel/expert_shares.h"
#include "common/kernels/philox.h"

namespace ref5d::expert_parallel {

ModelSizes deepseek_v3() {
  return {.name = "DeepSeek-V3",
          .vocab = 129280,
          .hidden = 7168,
          .layers = 61,
          .heads = 128,
          .kv_heads = 128,
          .latent = LatentAttention{.q_rank = 1536, .kv_rank = 512, .nope_dim = 128, .rope_dim = 64, .value_dim = 128},
          .dense_layers = 3,
          .dense_ffn = 18432,
          .experts = 256,
          .top_k = 8,
          .ffn = 2048,
          .shared_experts = 1};
}

ModelSizes mixtral_8x7b() {
  return {.name = "Mixtral 8x7B",
          .vocab = 32000,
          .hidden = 4096,
          .layers = 32,
          .heads = 32,
          .kv_heads = 8,
          .latent = std::nullopt,
          .dense_layers = 0,
          .dense_ffn = 0,
          .experts = 8,
          .top_k = 2,
          .ffn = 14336,
          .shared_experts = 0};
}

namespace {

// Matrices of one layer: q, k, v and o.
std::int64_t attention_matrices_of(const ModelSizes& m) {
  if (!m.latent) return 2 * m.hidden * m.hidden + 2 * m.hidden * (m.hidden / m.heads) * m.kv_heads;
  const LatentAttention& a = *m.latent;
  const std::int64_t q = m.hidden * a.q_rank + a.q_rank * m.heads * (a.nope_dim + a.rope_dim);
  const std::int64_t kv = m.hidden * (a.kv_rank + a.rope_dim) + a.kv_rank * m.heads * (a.nope_dim + a.value_dim);
  return q + kv + m.heads * a.value_dim * m.hidden;
}

ParameterParts parts_with(const ModelSizes& m, std::int64_t routed_experts) {
  ParameterParts p;
  p.embedding = p.head = m.vocab * m.hidden;
  p.attention = m.layers * attention_matrices_of(m);
  p.dense_mlps = m.dense_layers * 3 * m.hidden * m.dense_ffn;
  p.routed = m.expert_layers() * routed_experts * m.expert_parameters();
  p.shared = m.expert_layers() * m.shared_experts * m.expert_parameters();
  p.routers = m.expert_layers() * m.experts * m.hidden;
  p.norms = m.layers * (2 * m.hidden + (m.latent ? m.latent->q_rank + m.latent->kv_rank : 0)) + m.hidden;
  return p;
}

}  // namespace

ParameterParts parameters(const ModelSizes& m) { return parts_with(m, m.experts); }

ParameterParts active_parameters(const ModelSizes& m) { return parts_with(m, m.top_k); }

std::int64_t parameters_of_rank(const ModelSizes& m, int ranks, int rank) {
  return parts_with(m, experts_of(m.experts, ranks, rank).size()).all();
}

double all_to_all_rows(std::int64_t top_k, int ranks) { return static_cast<double>(top_k) * (ranks - 1) / ranks; }

double all_gather_rows(int ranks) { return ranks - 1; }

double rows_to_other_nodes(double mean_nodes, int nodes) { return mean_nodes * (nodes - 1) / nodes; }

double tensor_parallel_rows(int ranks) { return 2.0 * (ranks - 1) / ranks; }

namespace {

// None of k different ones of n is among `these`: C(n - these, k) / C(n, k).
double missing_all(std::int64_t n, std::int64_t these, std::int64_t k) {
  double p = 1;
  for (std::int64_t i = 0; i < k; ++i)
    p *= static_cast<double>(std::max<std::int64_t>(0, n - these - i)) / static_cast<double>(n - i);
  return p;
}

// Experts of each node from which a token's may come.
std::vector<std::int64_t> experts_of_open_nodes(const NodeChoice& c) {
  if (c.limited() && c.experts % c.nodes != 0) throw std::logic_error("a limit of nodes needs as many experts on each");
  std::vector<std::int64_t> experts;
  for (int n = 0; n < c.top_nodes; ++n) experts.push_back(experts_of(c.experts, c.nodes, n).size());
  return experts;
}

}  // namespace

NodesPerToken expected_nodes(const NodeChoice& c) {
  const std::vector<std::int64_t> sizes = experts_of_open_nodes(c);
  const std::int64_t open = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  NodesPerToken nodes{0, 0};
  double variance = 0;  // of a sum of yes and no: their covariances
  for (std::size_t a = 0; a < sizes.size(); ++a) {
    const double missed = missing_all(open, sizes[a], c.top_k);
    nodes.mean += 1 - missed;
    for (std::size_t b = 0; b < sizes.size(); ++b) {
      const double both = a == b ? missed : missing_all(open, sizes[a] + sizes[b], c.top_k);
      variance += both - missed * missing_all(open, sizes[b], c.top_k);
    }
  }
  nodes.deviation = std::sqrt(std::max(0.0, variance));
  return nodes;
}

namespace {

// The first `count` of `indices` by value, the greatest first.
template <typename Value>
std::vector<int> greatest_of(std::vector<int> indices, std::size_t count, const Value& value) {
  std::partial_sort(indices.begin(), indices.begin() + static_cast<std::ptrdiff_t>(count), indices.end(),
                    [&](int a, int b) { return value(a) != value(b) ? value(a) > value(b) : a < b; });
  indices.resize(count);
  return indices;
}

std::vector<int> first_integers(int n) {
  std::vector<int> v(static_cast<std::size_t>(n));
  std::iota(v.begin(), v.end(), 0);
  return v;
}

double two_greatest(std::span<const double> scores) {
  double first = scores[0], second = 0;
  for (std::size_t i = 1; i < scores.size(); ++i) {
    if (i == 1 || scores[i] > second) second = scores[i];
    if (second > first) std::swap(first, second);
  }
  return first + second;
}

std::vector<int> nodes_by_score(std::span<const double> scores, const NodeChoice& c) {
  std::vector<double> sums;
  for (int n = 0; n < c.nodes; ++n) {
    const Range own = experts_of(c.experts, c.nodes, n);
    sums.push_back(two_greatest(scores.subspan(static_cast<std::size_t>(own.begin), static_cast<std::size_t>(own.size()))));
  }
  return greatest_of(first_integers(c.nodes), static_cast<std::size_t>(c.top_nodes),
                     [&](int n) { return sums[static_cast<std::size_t>(n)]; });
}

std::vector<int> choose_from(std::span<const double> scores, const NodeChoice& c, const std::vector<int>& nodes) {
  std::vector<int> open;
  for (const int n : nodes) {
    const Range own = experts_of(c.experts, c.nodes, n);
    for (std::int64_t e = own.begin; e < own.end; ++e) open.push_back(static_cast<int>(e));
  }
  return greatest_of(std::move(open), static_cast<std::size_t>(c.top_k),
                     [&](int e) { return scores[static_cast<std::size_t>(e)]; });
}

// Uniform in [0, 1), for one token; `purpose` keeps draws of one kind apart from another's.
void draw_uniform(std::span<double> values, std::uint64_t seed, int token, std::uint32_t purpose) {
  for (std::size_t i = 0; i < values.size(); i += 4) {
    const Uint4 u = philox(seed, {static_cast<std::uint32_t>(i / 4), static_cast<std::uint32_t>(token), purpose, 0});
    const std::uint32_t words[] = {u.x, u.y, u.z, u.w};
    for (std::size_t j = 0; j < 4 && i + j < values.size(); ++j) values[i + j] = words[j] * 0x1p-32;
  }
}

}  // namespace

std::vector<int> choose_on_nodes(std::span<const double> scores, const NodeChoice& c) {
  return choose_from(scores, c, c.limited() ? nodes_by_score(scores, c) : first_integers(c.nodes));
}

double NodeCounts::mean() const {
  double sum = 0, all = 0;
  for (std::size_t n = 0; n < tokens.size(); ++n) {
    sum += static_cast<double>(n) * static_cast<double>(tokens[n]);
    all += static_cast<double>(tokens[n]);
  }
  return sum / all;
}

int NodeCounts::most() const {
  int most = static_cast<int>(tokens.size()) - 1;
  while (most > 0 && tokens[static_cast<std::size_t>(most)] == 0) --most;
  return most;
}

NodeCounts simulate_nodes(const NodeChoice& c, NodeRule rule, int tokens, std::uint64_t seed) {
  constexpr std::uint32_t kScorePurpose = 0x73636f72, kLotPurpose = 0x6c6f7473;
  NodeCounts counts{std::vector<std::int64_t>(static_cast<std::size_t>(c.nodes) + 1, 0)};
  std::vector<double> scores(static_cast<std::size_t>(c.experts)), lots(static_cast<std::size_t>(c.nodes));
  std::int64_t kept = 0;
  for (int t = 0; t < tokens; ++t) {
    draw_uniform(scores, seed, t, kScorePurpose);
    std::vector<int> open = first_integers(c.nodes);
    const std::vector<int> best = choose_from(scores, c, open);
    if (c.limited() && rule == NodeRule::kScores) open = nodes_by_score(scores, c);
    if (c.limited() && rule == NodeRule::kLot) {
      draw_uniform(lots, seed, t, kLotPurpose);
      open = greatest_of(open, static_cast<std::size_t>(c.top_nodes), [&](int n) { return lots[static_cast<std::size_t>(n)]; });
    }
    std::vector<bool> reached(static_cast<std::size_t>(c.nodes), false);
    for (const int e : choose_from(scores, c, open)) {
      reached[static_cast<std::size_t>(rank_of_expert(e, c.experts, c.nodes))] = true;
      kept += std::count(best.begin(), best.end(), e);
    }
    ++counts.tokens[static_cast<std::size_t>(std::count(reached.begin(), reached.end(), true))];
  }
  counts.kept = static_cast<double>(kept) / tokens;
  return counts;
}

}  // namespace ref5d::expert_parallel
