// Groups of parameters where experts are shared by other ranks than the rest, and what they cost.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "02_ddp_zero/claims.h"
#include "02_ddp_zero/expert_partials.h"
#include "02_ddp_zero/flat_group.h"
#include "tests/support/model_testing.h"

namespace ref5d::testing {
namespace expert_groups_test {

using namespace data_parallel;

constexpr int kDp = 4, kEdp = 2;  // so ep is 2
const ByKind kRanks(kDp, kEdp);

// Takes two of a block's matrices, of one size, for experts: the first is on ep rank 0, the second on ep rank 1.
void take_for_experts(const Gpt& gpt, int ep_rank) {
  for (Parameter* p : gpt.parameters()) {
    const bool first = p->name.find("up_proj") != std::string::npos, second = p->name.find("down_proj") != std::string::npos;
    p->expert = first || second;
    if (!p->expert || first == (ep_rank == 0)) continue;
    p->placement = {.dim = 0, .segments = {}};
    p->uses = 0;
  }
}

std::vector<Parameter*> of_kind(std::vector<Parameter*> parameters, bool expert) {
  std::erase_if(parameters, [&](const Parameter* p) { return p->expert != expert; });
  return parameters;
}

using Members = std::vector<std::vector<Parameter*>>;
Members members_of(const FlatGroups& groups, bool expert) {
  Members all;
  for (const FlatGroup& g : groups) {
    if (g.expert != expert) continue;
    all.emplace_back();
    for (const FlatGroup::Member& m : g.members) all.back().push_back(m.parameter);
  }
  return all;
}

// One bucket after the other, of parameters of one kind.
Members buckets_in_turn(const std::vector<Parameter*>& forward, std::int64_t capacity) {
  Members all;
  std::int64_t numel = capacity;
  for (auto p = forward.rbegin(); p != forward.rend(); ++p) {
    if (numel >= capacity) {
      all.emplace_back();
      numel = 0;
    }
    all.back().push_back(*p);
    numel += (*p)->local_numel();
  }
  return all;
}

FlatGroups buckets(const Gpt& gpt, std::int64_t capacity) {
  return make_buckets(gpt, static_cast<double>(capacity), 1, kRanks);
}

// Groups of one kind each, in the sizes of its ranks, and every parameter in one.
void expect_whole(const Gpt& gpt, const FlatGroups& groups) {
  std::vector<const Parameter*> found;
  for (const FlatGroup& g : groups) {
    EXPECT_EQ(g.ranks, kRanks.of(g.expert));
    std::int64_t at = 0;
    for (const FlatGroup::Member& m : g.members) {
      EXPECT_EQ(m.parameter->expert, g.expert) << m.parameter->name;
      EXPECT_EQ(m.begin, at);
      at = m.end();
      found.push_back(m.parameter);
    }
    EXPECT_EQ(g.numel, at);
  }
  const std::vector<Parameter*> all = gpt.parameters();
  EXPECT_TRUE(std::is_permutation(found.begin(), found.end(), all.begin(), all.end()));
}

constexpr std::int64_t kCapacities[] = {1, 12, 120, 121, 200, 1000, 1000000};

TEST(ExpertGroups, BucketsOfEachKindAreAsIfThereWereNoOther) {
  const Gpt gpt(small());
  for (const bool experts : {false, true}) {
    if (experts)
      for (Parameter* p : gpt.parameters()) p->expert = p->name.find("mlp.") != std::string::npos;
    for (const std::int64_t capacity : kCapacities) {
      const FlatGroups all = buckets(gpt, capacity);
      expect_whole(gpt, all);
      for (const bool expert : {false, true})
        EXPECT_EQ(members_of(all, expert), buckets_in_turn(of_kind(gpt.parameters(), expert), capacity)) << capacity;
    }
  }
}

TEST(ExpertGroups, BucketsAreWhereTheirFirstMembersAre) {
  const Gpt gpt(small());
  take_for_experts(gpt, 0);
  std::vector<Parameter*> backward = gpt.parameters();
  std::reverse(backward.begin(), backward.end());
  for (const std::int64_t capacity : kCapacities) {
    auto last = backward.begin();
    for (const FlatGroup& g : buckets(gpt, capacity)) {
      const auto first = std::find(backward.begin(), backward.end(), g.members.front().parameter);
      EXPECT_GE(first, last) << capacity;
      last = first;
    }
  }
}

// What follows the buckets' order, as gathers after the update do, is then the same on ranks that have different experts.
TEST(ExpertGroups, EpRanksHaveTheirBucketsInOneOrder) {
  const Gpt first(small()), second(small());
  take_for_experts(first, 0);
  take_for_experts(second, 1);
  for (const std::int64_t capacity : kCapacities) {
    const FlatGroups a = buckets(first, capacity), b = buckets(second, capacity);
    ASSERT_EQ(a.size(), b.size()) << capacity;
    expect_whole(second, b);
    for (std::size_t g = 0; g < a.size(); ++g) {
      EXPECT_EQ(a[g].expert, b[g].expert) << capacity;
      EXPECT_EQ(a[g].numel, b[g].numel) << capacity;
      EXPECT_EQ(a[g].used(), b[g].used()) << capacity;
    }
  }
}

TEST(ExpertGroups, AUnitsExpertsFollowTheRest) {
  const Gpt gpt(small());  // embedding, two blocks, head
  const FlatGroups dense = make_units(gpt, false, kRanks);
  EXPECT_EQ(dense.size(), 4U);
  take_for_experts(gpt, 0);
  const FlatGroups units = make_units(gpt, false, kRanks);
  expect_whole(gpt, units);
  std::vector<bool> kinds;
  for (const FlatGroup& g : units) kinds.push_back(g.expert);
  EXPECT_EQ(kinds, (std::vector<bool>{false, false, true, false, true, false}));
  EXPECT_EQ(groups_of_units(gpt, units), (std::vector<std::vector<std::size_t>>{{0}, {1, 2}, {3, 4}, {5}}));

  const FlatGroups whole = make_units(gpt, true, kRanks);
  expect_whole(gpt, whole);
  EXPECT_EQ(members_of(whole, false), Members{of_kind(gpt.parameters(), false)});
  EXPECT_EQ(members_of(whole, true), Members{of_kind(gpt.parameters(), true)});
  EXPECT_EQ(groups_of_units(gpt, whole), (std::vector<std::vector<std::size_t>>{{0}, {0, 1}, {0, 1}, {0}}));
}

TEST(ExpertGroups, EachKindIsCutOverItsRanks) {
  const Gpt gpt(small());
  take_for_experts(gpt, 0);
  const FlatGroups groups = buckets(gpt, 200);
  std::vector<std::int64_t> held(gpt.parameters().size());
  for (int rank = 0; rank < kDp; ++rank) {
    groups.cut({rank, rank % kEdp});
    for (std::size_t i = 0; i < held.size(); ++i)
      held[i] += flat_range(gpt.parameters()[i]->placement, gpt.parameters()[i]->local_numel()).size();
  }
  for (std::size_t i = 0; i < held.size(); ++i) {
    const Parameter& p = *gpt.parameters()[i];
    EXPECT_EQ(held[i], p.local_numel() * (p.expert ? kDp / kEdp : 1)) << p.name;
  }
}

class ExpertCosts : public ::testing::Test {
 protected:
  ExpertCosts() {
    take_for_experts(first_, 0);
    take_for_experts(second_, 1);
    o_.dtype = Dtype::kFp64;
    o_.grad_accum = 3;
  }
  // Of the two ep ranks.
  std::vector<Layout> layouts(const StrategyOptions& s, RanksOf ordinary, RanksOf experts) const {
    return {layout_of(o_, first_, s, ordinary, experts), layout_of(o_, second_, s, ordinary, experts)};
  }
  static std::int64_t bytes(const FlatGroups& groups, bool expert) {
    std::int64_t n = 0;
    for (const FlatGroup& g : groups)
      if (g.expert == expert) n += 8 * g.padded_numel();
    return n;
  }

  const Gpt first_{small()}, second_{small()};
  Options o_;
  StrategyOptions s_;
};

TEST_F(ExpertCosts, TrafficOfBucketsCountsOrdinaryOnesOnce) {
  s_.kind = "zero1";
  s_.bucket_bytes = 1600;
  const FlatGroups groups = make_buckets(first_, s_.bucket_bytes, 8, kRanks);
  const std::int64_t sent = bytes(groups, false) * (kDp - 1) + 2 * bytes(groups, true) * (kEdp - 1);
  const StepTraffic t = expected_traffic(layouts(s_, {kDp, kDp}, {kEdp, kEdp}), s_);
  EXPECT_EQ(t.gradients, sent);
  EXPECT_EQ(t.weights, sent);
  s_.kind = "ddp";
  const FlatGroups uncut = make_buckets(first_, s_.bucket_bytes, 8, 1);
  EXPECT_EQ(expected_traffic(layouts(s_, {kDp, kDp}, {kEdp, kEdp}), s_).total(),
            2 * (bytes(uncut, false) * (kDp - 1) + 2 * bytes(uncut, true) * (kEdp - 1)));
}

TEST_F(ExpertCosts, TrafficOfUnitsAndReplicas) {
  s_.kind = "hsdp";
  // Ordinary ones in two shards of two, experts in one: gcd(2, 2).
  const FlatGroups groups = make_units(first_, false, ByKind(2, 2));
  const std::int64_t ordinary = bytes(groups, false), experts = bytes(groups, true);
  const StepTraffic t = expected_traffic(layouts(s_, {kDp, 2}, {kEdp, 2}), s_);
  EXPECT_EQ(t.gradients, 3 * (2 * ordinary + 2 * experts));  // replicas, ep ranks
  EXPECT_EQ(t.between_replicas, 2 * ordinary);
  EXPECT_EQ(t.forward, t.gradients);
  EXPECT_EQ(t.backward, t.gradients);
}

TEST_F(ExpertCosts, MemoryIsOfBothKindsTogether) {
  s_.kind = "zero3";
  const FlatGroups groups = make_units(first_, false, kRanks);
  std::vector<std::int64_t> unit(4);  // embedding, two blocks, head
  std::int64_t shards = 0, own = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    unit[std::vector<std::size_t>{0, 1, 1, 2, 2, 3}[g]] += 8 * groups[g].padded_numel();
    shards += 8 * groups[g].shard_numel();
    own += groups[g].own_numel(groups[g].expert ? 1 : 3);
  }
  std::int64_t pair = 0;
  for (std::size_t u = 0; u + 1 < unit.size(); ++u) pair = std::max(pair, unit[u] + unit[u + 1]);
  const RankMemory m = expected_memory(layouts(s_, {kDp, kDp}, {kEdp, kEdp})[0], s_, {3, 1});
  EXPECT_EQ(m.parameters, shards);
  EXPECT_EQ(m.parameters_peak, shards + pair);
  EXPECT_EQ(m.gradients, shards);
  EXPECT_EQ(m.gradients_peak, shards + pair);
  EXPECT_EQ(m.optimizer, 16 * own);
}

TEST_F(ExpertCosts, WithoutExpertsRanksOfTheirKindDoNotMatter) {
  const Gpt dense(small());
  for (const std::string& kind : strategy_names()) {
    s_.kind = kind;
    const int shard = kind == "hsdp" ? 2 : kDp;
    const Layout one = layout_of(o_, dense, s_, kDp, shard), other = layout_of(o_, dense, s_, {kDp, shard}, {kEdp, 2});
    EXPECT_EQ(expected_traffic(one, s_).total(), expected_traffic({other, other}, s_).total()) << kind;
    const RankMemory a = expected_memory(one, s_, 1), b = expected_memory(other, s_, {1, 0});
    EXPECT_EQ(a.parameters_peak, b.parameters_peak) << kind;
    EXPECT_EQ(a.gradients_peak, b.gradients_peak) << kind;
    EXPECT_EQ(a.optimizer, b.optimizer) << kind;
  }
}

TEST(ExpertGroups, PartialsOfExpertsAreTakenOutAndPutBack) {
  const Gpt gpt(small());
  take_for_experts(gpt, 0);
  Stream& stream = device().compute();
  std::vector<OptimizerState> states;
  std::vector<double> values, expected, of_experts;
  for (Parameter* p : gpt.parameters()) {
    const std::size_t blocks = 1 + states.size() % 3;
    for (std::size_t b = 0; b < blocks; ++b) {
      values.push_back(static_cast<double>(values.size()));
      expected.push_back(values.back() + (p->expert ? 1000 : 0));
      if (p->expert) of_experts.push_back(values.back());
    }
    const Tensor own = Tensor::zeros({static_cast<std::int64_t>(blocks)}, Dtype::kFp64, MemoryCategory::kWorkspace, stream);
    states.push_back({p, {}, {}, own});
  }
  const auto size = static_cast<std::int64_t>(values.size());
  const Tensor partials = Tensor::empty({size}, Dtype::kFp64, MemoryCategory::kWorkspace, stream);
  partials.copy_from(HostTensor::from_doubles(values, {size}, Dtype::kFp64), stream);
  const ExpertPartials experts(states, partials);
  const Tensor joined = experts.joined(stream);
  EXPECT_EQ(joined.to_doubles(stream), of_experts);
  for (double& v : of_experts) v += 1000;
  joined.copy_from(HostTensor::from_doubles(of_experts, joined.shape(), Dtype::kFp64), stream);
  experts.replace(stream, joined);
  EXPECT_EQ(partials.to_doubles(stream), expected);
  for (Parameter* p : gpt.parameters()) p->expert = false;
  EXPECT_TRUE(ExpertPartials(states, partials).empty());
}

}  // namespace expert_groups_test
}  // namespace ref5d::testing
