// The arithmetic of lesson 06 beside published numbers, and beside enumeration where sizes are small.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "06_expert_parallel/calculator.h"
#include "06_expert_parallel/expert_shares.h"
#include "common/kernels/router.h"
#include "common/model/config.h"
#include "tests/support/kernel_testing.h"

namespace ref5d::testing {
namespace moe_calculator_test {

using namespace expert_parallel;

// In units of 1e9, with so many decimals.
double billions(std::int64_t parameters, int decimals) {
  const double digits = std::pow(10.0, decimals);
  return std::round(static_cast<double>(parameters) / 1e9 * digits) / digits;
}

// DeepSeek-V3 technical report, abstract and section 4.2: 671B in all, of which 37B are activated for each token. The
// description of the weights (README_WEIGHTS.md of the release) has 36.6B with 0.9B of the head, and so without the embedding.
TEST(MoeCalculator, DeepSeekV3AsPublished) {
  const ParameterParts all = parameters(deepseek_v3()), active = active_parameters(deepseek_v3());
  EXPECT_EQ(billions(all.all(), 0), 671);
  EXPECT_EQ(billions(active.all() - active.embedding, 0), 37);
  EXPECT_EQ(billions(active.all() - active.embedding, 1), 36.6);
  EXPECT_EQ(billions(active.head, 1), 0.9);
  EXPECT_EQ(billions(active.all(), 0), 38);  // so the embedding is not in what is published
  // Elements of the released main model's weights; they have a correction bias for each routed expert too.
  EXPECT_EQ(all.all() + 58 * 256, 671026419200);
}

// The shapes of a layer's weights in the release.
TEST(MoeCalculator, DeepSeekV3Layers) {
  const ParameterParts all = parameters(deepseek_v3()), active = active_parameters(deepseek_v3());
  const std::int64_t q = 7168 * 1536 + 1536 * 24576, kv = 7168 * 576 + 512 * 32768, o = 16384 * 7168;
  EXPECT_EQ(all.attention, 61 * (q + kv + o));
  EXPECT_EQ(all.norms, 61 * (7168 + 7168 + 1536 + 512) + 7168);
  EXPECT_EQ(all.dense_mlps, 3 * 3 * 7168 * 18432);
  EXPECT_EQ(all.routers, 58 * 256 * 7168);
  EXPECT_EQ(all.routed, 256 * all.shared);
  EXPECT_EQ(active.routed, 8 * active.shared);
  EXPECT_EQ(all.without_routed(), active.without_routed());
}

// Mistral AI's announcement (December 2023): 46.7B in all, 12.9B for a token; the paper's abstract has 47B and 13B.
TEST(MoeCalculator, Mixtral8x7BAsPublished) {
  const ParameterParts all = parameters(mixtral_8x7b()), active = active_parameters(mixtral_8x7b());
  EXPECT_EQ(billions(all.all(), 1), 46.7);
  EXPECT_EQ(billions(active.all(), 1), 12.9);
  EXPECT_EQ(billions(all.all(), 0), 47);
  EXPECT_EQ(billions(active.all(), 0), 13);
  EXPECT_EQ(billions(active.all() - active.embedding, 1), 12.7);  // so the embedding is in what is published
  EXPECT_EQ(2 * all.all(), 93405585408);  // bytes of the release in bf16: total_size of model.safetensors.index.json
}

TEST(MoeCalculator, CountsWhatThePresetsCount) {
  for (const char* name : {"tiny-mixtral", "tiny-deepseek", "mixtral-8x7b"}) {
    const GptConfig c = preset(name);
    const ModelSizes m{.name = name,
                       .vocab = c.vocab,
                       .hidden = c.hidden,
                       .layers = c.layers,
                       .heads = c.heads,
                       .kv_heads = c.kv_heads,
                       .latent = std::nullopt,
                       .dense_layers = 0,
                       .dense_ffn = 0,
                       .experts = c.moe.experts,
                       .top_k = c.moe.top_k,
                       .ffn = c.ffn,
                       .shared_experts = c.moe.shared_experts};
    const ParameterParts active = active_parameters(m);
    EXPECT_EQ(parameters(m).all(), c.parameter_count()) << name;
    EXPECT_EQ(active.all() - active.embedding - active.norms, c.matmul_parameter_count()) << name;
  }
}

TEST(MoeCalculator, EveryExpertIsOnOneRank) {
  EXPECT_EQ(rank_of_expert(12, 64, 8), 1);
  EXPECT_EQ(rank_of_expert(60, 64, 8), 7);
  for (int r = 0; r < 8; ++r) {
    EXPECT_EQ(experts_of(64, 8, r).begin, 8 * r);
    EXPECT_EQ(experts_of(64, 8, r).end, 8 * r + 8);
  }
  EXPECT_EQ(experts_of(8, 3, 0).size(), 3);
  EXPECT_EQ(experts_of(8, 3, 1).size(), 3);
  EXPECT_EQ(experts_of(8, 3, 2).size(), 2);
  for (const auto& [experts, ranks] : {std::pair{8, 3}, {64, 8}, {256, 48}, {7, 7}, {5, 1}}) {
    std::int64_t next = 0;
    for (int r = 0; r < ranks; ++r) {
      const Range own = experts_of(experts, ranks, r);
      EXPECT_EQ(own.begin, next);
      for (std::int64_t e = own.begin; e < own.end; ++e) EXPECT_EQ(rank_of_expert(e, experts, ranks), r);
      next = own.end;
    }
    EXPECT_EQ(next, experts);
  }
}

TEST(MoeCalculator, RanksTogetherHaveEveryExpertOnce) {
  for (const ModelSizes& m : {deepseek_v3(), mixtral_8x7b()}) {
    const ParameterParts parts = parameters(m);
    EXPECT_EQ(parameters_of_rank(m, 1, 0), parts.all());
    for (const int ranks : {2, 3, 5, 8}) {
      std::int64_t sum = 0;
      for (int r = 0; r < ranks; ++r) sum += parameters_of_rank(m, ranks, r);
      EXPECT_EQ(sum, ranks * parts.without_routed() + parts.routed) << m.name << " on " << ranks;
    }
  }
  const ModelSizes m = mixtral_8x7b();
  const std::int64_t expert = 32 * m.expert_parameters();
  EXPECT_EQ(parameters_of_rank(m, 3, 0) - parameters_of_rank(m, 3, 2), expert);
  EXPECT_EQ(parameters_of_rank(m, 3, 2) - parameters(m).without_routed(), 2 * expert);
}

// Every set of k of the experts 0 .. n-1, as bits.
std::vector<unsigned> sets_of(int n, int k) {
  std::vector<unsigned> sets;
  for (unsigned set = 0; set < 1u << n; ++set) {
    if (std::popcount(set) == k) sets.push_back(set);
  }
  return sets;
}

std::vector<int> members_of(unsigned set) {
  std::vector<int> members;
  for (int e = 0; set >> e != 0; ++e) {
    if ((set >> e & 1) != 0) members.push_back(e);
  }
  return members;
}

struct Enumerated {
  double sum = 0, squares = 0, count = 0;
  void add(double x) {
    sum += x;
    squares += x * x;
    ++count;
  }
  [[nodiscard]] double mean() const { return sum / count; }
  [[nodiscard]] double deviation() const { return std::sqrt(squares / count - mean() * mean()); }
};

std::set<int> nodes_of(unsigned chosen, std::int64_t experts, int nodes) {
  std::set<int> reached;
  for (const int e : members_of(chosen)) reached.insert(rank_of_expert(e, experts, nodes));
  return reached;
}

TEST(MoeCalculator, NodesOfATokenMatchEnumeration) {
  for (const auto& c : {NodeChoice{8, 4, 2, 4},
                        {8, 4, 3, 4},
                        {8, 2, 2, 2},
                        {10, 3, 3, 3},
                        {8, 3, 2, 3},
                        {6, 6, 4, 6},
                        {8, 1, 2, 1},
                        {9, 2, 6, 2},
                        {5, 2, 5, 2}}) {
    Enumerated nodes, others;
    for (const unsigned chosen : sets_of(static_cast<int>(c.experts), static_cast<int>(c.top_k))) {
      const std::set<int> reached = nodes_of(chosen, c.experts, c.nodes);
      nodes.add(static_cast<double>(reached.size()));
      for (int own = 0; own < c.nodes; ++own) others.add(static_cast<double>(reached.size() - reached.count(own)));
    }
    const NodesPerToken expected = expected_nodes(c);
    EXPECT_NEAR(expected.mean, nodes.mean(), 1e-12) << c.experts << " on " << c.nodes;
    EXPECT_NEAR(expected.deviation, nodes.deviation(), 1e-7) << c.experts << " on " << c.nodes;
    EXPECT_NEAR(rows_to_other_nodes(expected.mean, c.nodes), others.mean(), 1e-12) << c.experts << " on " << c.nodes;
  }
}

// Every set of nodes, and every choice from their experts.
TEST(MoeCalculator, NodesByLotMatchEnumeration) {
  for (const auto& c : {NodeChoice{8, 4, 2, 2}, {8, 4, 3, 2}, {9, 3, 2, 1}, {12, 6, 4, 3}, {8, 8, 3, 5}}) {
    Enumerated nodes, others;
    const auto sets = sets_of(static_cast<int>(c.experts), static_cast<int>(c.top_k));
    for (const unsigned open : sets_of(c.nodes, c.top_nodes)) {
      for (const unsigned chosen : sets) {
        const std::set<int> reached = nodes_of(chosen, c.experts, c.nodes);
        bool allowed = true;
        for (const int n : reached) allowed = allowed && (open >> n & 1) != 0;
        if (!allowed) continue;
        nodes.add(static_cast<double>(reached.size()));
        for (int own = 0; own < c.nodes; ++own) others.add(static_cast<double>(reached.size() - reached.count(own)));
      }
    }
    const NodesPerToken expected = expected_nodes(c);
    EXPECT_NEAR(expected.mean, nodes.mean(), 1e-12) << c.experts << " on " << c.nodes;
    EXPECT_NEAR(expected.deviation, nodes.deviation(), 1e-7) << c.experts << " on " << c.nodes;
    EXPECT_NEAR(rows_to_other_nodes(expected.mean, c.nodes), others.mean(), 1e-12) << c.experts << " on " << c.nodes;
  }
}

TEST(MoeCalculator, ALimitNeedsEqualNodes) {
  EXPECT_THROW((void)expected_nodes({10, 3, 2, 2}), std::logic_error);
  EXPECT_NO_THROW((void)expected_nodes({10, 3, 2, 3}));
}

// Rows to other ranks, one for each choice, from tokens of every rank.
TEST(MoeCalculator, RowsOfATokenMatchEnumeration) {
  for (const auto& [experts, ranks, k] : {std::tuple{8, 4, 2}, {8, 3, 2}, {7, 3, 3}, {6, 1, 2}, {5, 5, 4}}) {
    Enumerated rows;
    for (const unsigned chosen : sets_of(experts, k)) {
      for (int own = 0; own < ranks; ++own) {
        int sent = 0;
        for (const int e : members_of(chosen)) sent += rank_of_expert(e, experts, ranks) == own ? 0 : 1;
        rows.add(sent);
      }
    }
    EXPECT_NEAR(all_to_all_rows(k, ranks), rows.mean(), 1e-12) << experts << " on " << ranks;
  }
}

// Inside of nodes a row goes from the rank at which it arrives, which has its sender's place, to those of its choices.
TEST(MoeCalculator, RowsInsideOfNodesMatchEnumeration) {
  constexpr int kExperts = 8, kRanks = 4, kOfNode = 2, kTop = 3;
  Enumerated rows;
  for (const unsigned chosen : sets_of(kExperts, kTop)) {
    for (int own = 0; own < kRanks; ++own) {
      int sent = 0;
      for (const int e : members_of(chosen)) {
        const int to = rank_of_expert(e, kExperts, kRanks), arrives = to / kOfNode * kOfNode + own % kOfNode;
        sent += to == arrives ? 0 : 1;
      }
      rows.add(sent);
    }
  }
  EXPECT_NEAR(all_to_all_rows(kTop, kOfNode), rows.mean(), 1e-12);
}

TEST(MoeCalculator, AllGatherAndCutExpertsSendNOverKTimesAsMuch) {
  for (const auto& [k, ranks] : {std::pair{8, 64}, {2, 8}, {2, 3}}) {
    const double ratio = static_cast<double>(ranks) / k;
    EXPECT_DOUBLE_EQ(all_gather_rows(ranks) / all_to_all_rows(k, ranks), ratio);
    EXPECT_DOUBLE_EQ(2 * ranks * tensor_parallel_rows(ranks) / (4 * all_to_all_rows(k, ranks)), ratio);
  }
  EXPECT_EQ(all_to_all_rows(2, 1), 0);
  EXPECT_EQ(all_gather_rows(1), 0);
  EXPECT_EQ(tensor_parallel_rows(1), 0);
  EXPECT_EQ(tensor_parallel_rows(2), 1);
}

// The lesson's numbers of DeepSeek-V3's 8 of 256 experts on 8 nodes.
constexpr NodeChoice kEveryNode{256, 8, 8, 8}, kFourNodes{256, 8, 8, 4};

TEST(MoeCalculator, NodesOfDeepSeekV3) {
  EXPECT_NEAR(expected_nodes(kEveryNode).mean, 5.294652000382479, 1e-12);   // 8 (1 - C(224,8) / C(256,8))
  EXPECT_NEAR(expected_nodes(kFourNodes).mean, 3.6290109244257005, 1e-12);  // 4 (1 - C(96,8) / C(128,8))
}

TEST(NodeLimit, ByHand) {
  // Sums of two greatest: 0.9, 1.0, 1.1, 0.8.
  const std::vector<double> scores{0.9, 0.0, 0.5, 0.5, 0.6, 0.5, 0.1, 0.7};
  EXPECT_EQ(choose_on_nodes(scores, {8, 4, 2, 4}), (std::vector<int>{0, 7}));
  EXPECT_EQ(choose_on_nodes(scores, {8, 4, 2, 2}), (std::vector<int>{4, 2}));  // of the equal ones the lower index
  EXPECT_EQ(choose_on_nodes(scores, {8, 4, 2, 1}), (std::vector<int>{4, 5}));
  // All the same: the first nodes' first experts.
  EXPECT_EQ(choose_on_nodes(std::vector<double>(8, 0.25), {8, 4, 3, 2}), (std::vector<int>{0, 1, 2}));
}

// Scores of few different values have ties in plenty.
TEST(NodeLimit, ChoosesAsTheRouterDoes) {
  constexpr int kRows = 40;
  for (const int values : {5, 1 << 20}) {
    for (const auto& c : {kEveryNode, kFourNodes, NodeChoice{8, 4, 2, 2}, {8, 8, 3, 4}, {12, 3, 4, 1}, {16, 2, 8, 2}}) {
      std::vector<double> scores = random_values(kRows * c.experts, 6);
      for (double& s : scores) s = std::floor(values / (1 + std::exp(-s))) / values;
      const Tensor chosen = device_ints(Ints(static_cast<std::size_t>(kRows * c.top_k), -7), {kRows, c.top_k});
      choose_experts(stream(), chosen, device_tensor(scores, {kRows, c.experts}, Dtype::kFp64), Tensor(),
                     {static_cast<int>(c.top_k), c.nodes, c.top_nodes});
      std::vector<double> expected;
      for (int r = 0; r < kRows; ++r) {
        const auto own =
            std::span(scores).subspan(static_cast<std::size_t>(r * c.experts), static_cast<std::size_t>(c.experts));
        for (const int e : choose_on_nodes(own, c)) expected.push_back(e);
      }
      EXPECT_EQ(values_of(chosen), expected) << c.experts << " on " << c.top_nodes << " of " << c.nodes;
    }
  }
}

// Within five standard deviations of a mean, which a seed leaves by chance once in 1.7 million.
TEST(NodeLimit, SimulationAgreesWithTheFormula) {
  constexpr int kTokens = 4000;
  const auto near = [](double expected, double deviation, double measured) {
    EXPECT_NEAR(measured, expected, 5 * deviation / std::sqrt(double{kTokens}));
  };
  for (const std::uint64_t seed : {std::uint64_t{1}, std::uint64_t{6}}) {
    const NodeCounts every = simulate_nodes(kEveryNode, NodeRule::kScores, kTokens, seed);
    const NodeCounts lot = simulate_nodes(kFourNodes, NodeRule::kLot, kTokens, seed);
    const NodeCounts limited = simulate_nodes(kFourNodes, NodeRule::kScores, kTokens, seed);
    const NodesPerToken any = expected_nodes(kEveryNode), four = expected_nodes(kFourNodes);
    near(any.mean, any.deviation, every.mean());
    near(four.mean, four.deviation, lot.mean());
    EXPECT_GT(every.most(), 4);
    EXPECT_EQ(lot.most(), 4);
    EXPECT_EQ(limited.most(), 4);
    EXPECT_GT(limited.mean(), lot.mean());  // nodes that are chosen for their scores are more often used
    EXPECT_EQ(every.kept, 8);
    near(4, std::sqrt(2 * 248.0 / 255), lot.kept);  // 8 of 256, half of which may be used
    EXPECT_GT(limited.kept, lot.kept + 2);
  }
}

TEST(NodeLimit, SimulationCountsEveryTokenTheSameEachTime) {
  const NodeCounts a = simulate_nodes(kFourNodes, NodeRule::kLot, 500, 3),
                   b = simulate_nodes(kFourNodes, NodeRule::kLot, 500, 3);
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.tokens.size(), 9u);
  EXPECT_NE(a.tokens, simulate_nodes(kFourNodes, NodeRule::kLot, 500, 4).tokens);
  std::int64_t all = 0;
  for (const std::int64_t n : a.tokens) all += n;
  EXPECT_EQ(all, 500);
}

}  // namespace moe_calculator_test
}  // namespace ref5d::testing
