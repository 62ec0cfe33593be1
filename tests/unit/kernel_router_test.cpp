// The router's scores, its choice of experts and their weights.
#include <algorithm>
#include <numeric>
#include <set>

#include "common/kernels/router.h"
#include "tests/support/kernel_repeat.h"
#include "tests/support/moe_kernel_testing.h"

namespace ref5d::testing::moe::of_router {
namespace {

const double kNan = std::nan("");

TEST(RouterKernel, ScoresMatchTheFormula) {
  for (const Dtype dtype : kWide)
    for (const ScoreKind kind : kKinds)
      for (const std::int64_t experts : {1, 2, 3, 8, 31, 32, 33, 65, 129, 512}) {
        const Values logits = rounded(random_values(5 * experts, 1, 3), dtype);
        const Tensor x = device_tensor(logits, {5, experts}, dtype);
        EXPECT_LT(relative_error(values_of(scores_of(x, kind)), reference_scores(logits, experts, kind)),
                  dtype == Dtype::kFp64 ? 2e-15 : 5e-7)
            << experts;
        EXPECT_EQ(values_of(x), logits) << "the input changed";
      }
}

TEST(RouterKernel, LargeLogitsNeitherOverflowNorLeaveTheUnitInterval) {
  for (const Dtype dtype : kWide) {
    const Values softmax = values_of(scores_of(device_tensor({1e4, 1e4, -1e4, 3e38, -3e38, 0}, {2, 3}, dtype), kKinds[0]));
    EXPECT_EQ(softmax, Values({0.5, 0.5, 0, 1, 0, 0}));
    const Values sigmoid = values_of(scores_of(device_tensor({1e4, -1e4, 0, 3e38, -3e38, 0}, {2, 3}, dtype), kKinds[1]));
    EXPECT_EQ(sigmoid, Values({1, 0, 0.5, 1, 0, 0.5}));
  }
}

TEST(RouterKernel, ANanLogitShowsInItsRowAlone) {
  const Tensor x = device_tensor({1, kNan, 2, 0, 0, 0}, {2, 3}, Dtype::kFp32);
  const Values s = values_of(scores_of(x, ScoreKind::kSoftmax));
  for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(std::isnan(s[i]), i < 3) << i;
  const Values of_each = values_of(scores_of(x, ScoreKind::kSigmoid));
  for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(std::isnan(of_each[i]), i == 1) << i;
}

bool comes_first(double a, double b) { return a > b || (std::isnan(b) && !std::isnan(a)); }

// By stable sorts: of the groups, and of the experts in those that are left.
Ints naive_choice(const Values& value, const ChoiceRule& rule) {
  const auto size = static_cast<std::ptrdiff_t>(value.size()) / rule.groups;
  Values of_group;
  for (std::ptrdiff_t g = 0; g < rule.groups; ++g) {
    Values members(value.begin() + g * size, value.begin() + (g + 1) * size);
    std::stable_sort(members.begin(), members.end(), comes_first);
    of_group.push_back(size == 1 ? members[0] : members[0] + members[1]);
  }
  Ints groups(of_group.size()), experts;
  std::iota(groups.begin(), groups.end(), 0);
  std::stable_sort(groups.begin(), groups.end(), [&](auto a, auto b) { return comes_first(of_group[a], of_group[b]); });
  groups.resize(static_cast<std::size_t>(rule.top_groups));
  for (std::size_t e = 0; e < value.size(); ++e)
    if (std::count(groups.begin(), groups.end(), static_cast<std::ptrdiff_t>(e) / size) > 0) experts.push_back(std::int32_t(e));
  std::stable_sort(experts.begin(), experts.end(), [&](auto a, auto b) { return comes_first(value[a], value[b]); });
  experts.resize(static_cast<std::size_t>(rule.top_k));
  return experts;
}

// Eighths, so that the sums are exact in every dtype and many values are equal; with some that are no numbers.
Values eighths(std::int64_t n, unsigned seed, bool numbers_alone) {
  Values v;
  for (const std::int32_t x : random_ints(n, 0, 32, seed))
    v.push_back(!numbers_alone && x % 7 == 0 ? kNan : !numbers_alone && x % 5 == 0 ? -HUGE_VAL : x / 8.0);
  return v;
}

void expect_naive_choice(std::int64_t experts, const ChoiceRule& rule, unsigned seed) {
  const std::int64_t rows = 6;
  const bool biased = seed % 2 == 0;
  const Values s = eighths(rows * experts, seed, seed % 3 == 0), b = eighths(experts, seed + 1, true);
  Ints expected;
  for (std::int64_t r = 0; r < rows; ++r) {
    Values value(s.begin() + r * experts, s.begin() + (r + 1) * experts);
    for (std::size_t e = 0; biased && e < value.size(); ++e) value[e] += b[e];
    const Ints row = naive_choice(value, rule);
    EXPECT_EQ(std::set<std::int32_t>(row.begin(), row.end()).size(), row.size());
    expected.insert(expected.end(), row.begin(), row.end());
  }
  for (const Dtype dtype : kWide) {
    const Tensor bias = biased ? device_tensor(b, {experts}, dtype) : Tensor();
    EXPECT_EQ(ints_of(choice_of(device_tensor(s, {rows, experts}, dtype), bias, rule)), expected)
        << experts << " experts, " << rule.top_k << " in " << rule.top_groups << " of " << rule.groups << ", seed " << seed;
  }
}

TEST(RouterKernel, ChoiceIsThatOfStableSortsForEveryNumberOfGroups) {
  unsigned seed = 0;
  for (const int experts : {1, 2, 3, 8, 12, 31, 32, 33, 64, 130, 512})
    for (int groups = 1; groups <= experts; ++groups) {
      if (experts % groups != 0) continue;
      for (const int top_groups : std::set<int>{1, (groups + 1) / 2, groups}) {
        const int most = std::min(16, top_groups * (experts / groups));
        for (const int k : std::set<int>{1, (most + 1) / 2, most})
          expect_naive_choice(experts, {k, groups, top_groups}, ++seed);
      }
    }
}

TEST(RouterKernel, OfEqualExpertsAndGroupsTheLowerIndexComesFirst) {
  const Tensor equal = device_tensor(Values(8, 0.25), {1, 8}, Dtype::kFp32);
  EXPECT_EQ(ints_of(choice_of(equal, {}, {4, 1, 1})), Ints({0, 1, 2, 3}));
  EXPECT_EQ(ints_of(choice_of(equal, {}, {4, 4, 2})), Ints({0, 1, 2, 3}));
  const Tensor two = device_tensor({0, -0.0, 1, 0, 1, -0.0, 2, 0}, {1, 8}, Dtype::kFp32);  // zeros are equal
  EXPECT_EQ(ints_of(choice_of(two, {}, {8, 1, 1})), Ints({6, 2, 4, 0, 1, 3, 5, 7}));
  EXPECT_EQ(ints_of(choice_of(two, {}, {4, 4, 2})), Ints({6, 2, 3, 7}));
}

// A row that has nothing to choose by still has k different experts, of the groups that it may use.
TEST(RouterKernel, RowsOfNanAndMinusInfinityHaveDistinctChoicesInTheirGroups) {
  const double no = -HUGE_VAL;
  const Values rows{kNan, kNan, kNan, kNan, kNan, kNan,  //
                    no,   no,   no,   no,   no,   no,    //
                    kNan, no,   no,   kNan, 5,    kNan,  //
                    no,   no,   kNan, 1,    no,   no};
  for (const Dtype dtype : kWide) {
    const Tensor s = device_tensor(rows, {4, 6}, dtype);
    EXPECT_EQ(ints_of(choice_of(s, {}, {4, 1, 1})), Ints({0, 1, 2, 3, 0, 1, 2, 3, 4, 1, 2, 0, 3, 0, 1, 4}));
    // Sums of groups: NaN, NaN, NaN; -inf, -inf, -inf; NaN, NaN, NaN; -inf, NaN, -inf.
    EXPECT_EQ(ints_of(choice_of(s, {}, {2, 3, 1})), Ints({0, 1, 0, 1, 1, 0, 0, 1}));
    EXPECT_EQ(ints_of(choice_of(s, {}, {4, 3, 2})), Ints({0, 1, 2, 3, 0, 1, 2, 3, 1, 2, 0, 3, 0, 1, 4, 5}));
  }
}

TEST(RouterKernel, BiasMovesTheChoiceAlone) {
  const Tensor s = device_tensor({0.5, 0.25, 0.125, 0.125}, {1, 4}, Dtype::kFp64), bias = fp64({0, 0, 1, 0});
  const Tensor with = choice_of(s, bias, {2, 1, 1});
  EXPECT_EQ(ints_of(choice_of(s, {}, {2, 1, 1})), Ints({0, 1}));
  EXPECT_EQ(ints_of(with), Ints({2, 0}));
  EXPECT_EQ(values_of(weights_of(s, with, false, 1)), Values({0.125, 0.5}));
  EXPECT_EQ(values_of(weights_of(s, with, true, 1)), Values({0.2, 0.8}));
  // A group of the other half is chosen by its bias, too.
  EXPECT_EQ(ints_of(choice_of(s, bias, {2, 2, 1})), Ints({2, 3}));
}

TEST(RouterKernel, WeightsAreTheChosenScoresOrTheirShares) {
  const std::int64_t rows = 300, experts = 40;
  for (const Dtype dtype : kWide)
    for (const int k : {1, 2, 6, 16})
      for (const double scale : {1.0, 2.5})
        for (const bool renormalise : {false, true}) {
          const Values s = rounded(reference_scores(random_values(rows * experts, 3), experts, ScoreKind::kSigmoid), dtype);
          const Ints c = distinct_choice(rows, k, experts, 4).chosen;
          Values expected;
          for (std::int64_t i = 0; i < rows * k; ++i) {
            const auto score = [&](std::int64_t slot) { return s[static_cast<std::size_t>(slot / k * experts + c[slot])]; };
            double sum = 0;
            for (std::int64_t j = 0; j < k; ++j) sum += score(i / k * k + j);
            expected.push_back(score(i) * scale / (renormalise ? sum : 1));
          }
          const Tensor w = weights_of(device_tensor(s, {rows, experts}, dtype), device_ints(c, {rows, k}), renormalise, scale);
          EXPECT_LT(relative_error(values_of(w), expected), dtype == Dtype::kFp64 ? 1e-15 : 3e-7) << k;
        }
}

TEST(RouterKernel, RepeatsBitwise) {
  const std::int64_t rows = 700, experts = 40;
  const Values x = random_values(rows * experts, 17);
  const Choice c = distinct_choice(rows, 4, experts, 7);
  for (const ScoreKind kind : kKinds) {
    const auto scores = [&] { return scores_of(device_tensor(x, {rows, experts}, Dtype::kFp32), kind); };
    expect_repeatable(scores);
    expect_repeatable([&] { return choice_of(scores(), {}, {4, 5, 2}); });
    expect_repeatable([&] { return weights_of(scores(), c.on_device(), true, 1); });
  }
}

TEST(RouterKernel, ImpossibleChoicesAreRefused) {
  const Tensor s = poisoned({2, 6}, Dtype::kFp32);
  for (const ChoiceRule& rule : std::vector<ChoiceRule>{
           {7, 1, 1}, {0, 1, 1}, {1, 4, 1}, {1, 0, 0}, {1, -1, 1}, {1, 3, 4}, {1, 3, 0}, {3, 3, 1}, {5, 3, 2}}) {
    const Tensor chosen = device_ints(Ints(2 * rule.top_k), {2, rule.top_k});
    EXPECT_THROW(choose_experts(stream(), chosen, s, {}, rule), std::logic_error) << rule.top_k << " " << rule.groups;
  }
  EXPECT_NO_THROW(choose_experts(stream(), device_ints(Ints(8), {2, 4}), s, {}, {4, 3, 2}));
  EXPECT_THROW(choose_experts(stream(), device_ints(Ints(8), {2, 4}), s, {}, {3, 3, 2}), std::logic_error);
  EXPECT_THROW(choose_experts(stream(), device_ints(Ints(2), {2, 1}), s, poisoned({5}, Dtype::kFp32), {}), std::logic_error);
  EXPECT_THROW(choose_experts(stream(), device_ints(Ints(2), {2, 1}), s, poisoned({6}, Dtype::kFp64), {}), std::logic_error);
}

TEST(RouterKernel, WrongShapesAndDtypesAreRefused) {
  const Tensor s = poisoned({2, 6}, Dtype::kFp32), bf16 = poisoned({2, 6}, Dtype::kBf16),
               other = poisoned({2, 6}, Dtype::kFp64), part = poisoned({2, 7}, Dtype::kFp32).columns(0, 6);
  const Tensor chosen = device_ints({0, 1, 2, 3, 4, 5}, {2, 3});
  for (const Tensor& wrong : {bf16, other, part, chosen}) {
    refused([&] { router_scores(stream(), s, wrong, ScoreKind::kSoftmax); });
    refused([&] { router_scores(stream(), wrong, s, ScoreKind::kSigmoid); });
    refused([&] { routing_weights(stream(), wrong, s, chosen, true, 1); });
  }
}

}  // namespace
}  // namespace ref5d::testing::moe::of_router
