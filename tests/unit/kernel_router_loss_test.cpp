// How even a router's load is: what is counted, and the losses by it.
#include <cmath>
#include <numeric>

#include "common/kernels/router.h"
#include "tests/support/kernel_repeat.h"
#include "tests/support/moe_kernel_testing.h"

namespace ref5d::testing::moe::of_router_loss {
namespace {

TEST(RouterKernel, LoadCountsChoicesAndSumsProbabilitiesBySequence) {
  for (const Dtype dtype : kWide)
    for (const ScoreKind kind : kKinds)
      for (const std::int64_t rows : {1, 63, 97, 350})  // the last are several stretches
        for (const std::int64_t sequences : {1, 3})
          for (const std::int64_t experts : {2, 33, 130}) {
            const int k = 2;
            const Values s = rounded(reference_scores(random_values(rows * experts, 11), experts, kind), dtype);
            const Ints c = distinct_choice(rows, k, experts, 12).chosen, q = random_ints(rows, 0, std::int32_t(sequences), 13);
            Values counts(static_cast<std::size_t>(sequences * experts)), sums(counts.size()), load_counts, load_sums;
            for (std::int64_t r = 0; r < rows; ++r) {
              const auto row = s.begin() + r * experts;
              const double total = kind == ScoreKind::kSigmoid ? std::accumulate(row, row + experts, 0.0) : 1;
              const auto at = static_cast<std::size_t>(q[r] * experts);
              for (std::int64_t e = 0; e < experts; ++e) sums[at + e] += row[e] / total;
              for (std::int64_t j = 0; j < k; ++j) ++counts[at + c[r * k + j]];
            }
            const Tensor scores = device_tensor(s, {rows, experts}, dtype);
            const Values load = values_of(load_of(scores, device_ints(c, {rows, k}), ints(q), sequences, kind));
            for (std::int64_t i = 0; i < size_of(load); ++i)
              (i / experts % 2 == 0 ? load_counts : load_sums).push_back(load[i]);
            EXPECT_EQ(load_counts, counts);
            EXPECT_LT(relative_error(load_sums, sums), 1e-14) << rows << " " << experts;
          }
}

TEST(RouterKernel, BalanceLossMatchesTheFormula) {
  const std::int64_t sequences = 4, experts = 70;
  const int k = 3;
  const Values lengths{5, 1, 0, 900};  // one is empty
  const Ints numbers = random_ints(sequences * 2 * experts, 0, 100, 14);
  Values load(numbers.begin(), numbers.end()), gradient;
  double loss = 0;
  for (std::size_t d = 0; d < 4; ++d)
    for (std::size_t e = 0; e < 70; ++e) {
      const double f = load[d * 140 + e] / (k * lengths[d]), factor = 0.25 * experts / sequences;
      if (lengths[d] > 0) loss += factor * f * load[d * 140 + 70 + e] / lengths[d];
      gradient.push_back(lengths[d] > 0 ? 3 * factor * f / lengths[d] : 0);
    }
  for (const Dtype dtype : kWide) {
    const Balance b = balance_of(device_tensor(load, {sequences, 2, experts}, Dtype::kFp64), lengths, k, 0.25, 3, dtype);
    EXPECT_NEAR(b.loss / loss, 1, 1e-14);
    EXPECT_LT(relative_error(values_of(b.gradient), gradient), dtype == Dtype::kFp64 ? 1e-15 : 1e-7);
  }
}

TEST(RouterKernel, T8_BalanceLossDependsOnWhatItIsCountedOver) {
  const Tensor p =
      device_tensor({.75, .25, .75, .25, .75, .25, .75, .25, .25, .75, .25, .75, .25, .75, .25, .75}, {8, 2}, Dtype::kFp64);
  const auto loss = [&](std::int64_t begin, std::int64_t end, const Ints& sequence, const Values& lengths) {
    const Tensor rows = p.rows(begin, end), chosen = choice_of(rows, {}, {});
    return balance_of(load_of(rows, chosen, ints(sequence), size_of(lengths), ScoreKind::kSoftmax), lengths, 1).loss;
  };
  EXPECT_EQ(loss(0, 8, Ints(8, 0), {8}), 1.0);
  EXPECT_EQ((loss(0, 4, Ints(4, 0), {4}) + loss(4, 8, Ints(4, 0), {4})) / 2, 1.5);
  EXPECT_EQ(loss(0, 8, {0, 0, 0, 0, 1, 1, 1, 1}, {4, 4}), 1.5);
}

TEST(RouterKernel, BalanceLossOfAnEvenLoadIsItsCoefficient) {
  const std::int64_t rows = 12;
  const Tensor s = scores_of(device_tensor(random_values(rows * 6, 15, 2), {rows, 6}, Dtype::kFp64), ScoreKind::kSigmoid);
  Ints chosen;
  for (std::int32_t i = 0; i < 24; ++i) chosen.push_back(i % 6);
  const Tensor load = load_of(s, device_ints(chosen, {rows, 2}), ints(Ints(12, 0)), 1, ScoreKind::kSigmoid);
  EXPECT_NEAR(balance_of(load, {12}, 2, 0.01).loss, 0.01, 1e-16);
}

TEST(RouterKernel, ZSumMatchesTheFormulaAlsoOfLargeLogits) {
  for (const Dtype dtype : kWide)
    for (const std::int64_t experts : {1, 6, 33, 300})
      for (const double deviation : {1.0, 1e4}) {
        const Values x = rounded(random_values(301 * experts, 16, deviation), dtype);
        double expected = 0;
        for (std::int64_t r = 0; r < 301; ++r) expected += std::pow(reference_lse(&x[r * experts], experts), 2);
        EXPECT_NEAR(z_of(device_tensor(x, {301, experts}, dtype)) / expected, 1, dtype == Dtype::kFp64 ? 1e-14 : 1e-6)
            << experts;
      }
}

TEST(RouterKernel, LossesRepeatBitwise) {
  const std::int64_t rows = 700, experts = 40;
  const Values x = random_values(rows * experts, 17);
  const Choice c = distinct_choice(rows, 4, experts, 7);
  const Ints sequence = random_ints(rows, 0, 3, 8);
  Values lengths(3);
  for (const std::int32_t s : sequence) ++lengths[at(s, 1)];
  for (const ScoreKind kind : kKinds) {
    const auto logits = [&] { return device_tensor(x, {rows, experts}, Dtype::kFp32); };
    const auto load = [&] { return load_of(scores_of(logits(), kind), c.on_device(), ints(sequence), 3, kind); };
    const auto balance = [&] { return balance_of(load(), lengths, 4, 0.3, 0.7, Dtype::kFp32); };
    expect_repeatable(load);
    expect_repeatable([&] { return balance().gradient; });
    expect_repeatable([&] { return fp64({balance().loss, z_of(logits())}); });
  }
}

TEST(RouterKernel, NoRowsHaveNoLoad) {
  for (const ScoreKind kind : kKinds) {
    const Tensor s = scores_of(poisoned({0, 5}, Dtype::kFp32), kind), chosen = choice_of(s, {}, {2, 1, 1});
    EXPECT_EQ(values_of(weights_of(s, chosen, true, 1)), Values());
    const Tensor load = load_of(s, chosen, ints({}), 2, kind);
    EXPECT_EQ(values_of(load), Values(20, 0.0));
    const Balance b = balance_of(load, {0, 0}, 2);
    EXPECT_EQ(b.loss, 0);
    EXPECT_EQ(values_of(b.gradient), Values(10, 0.0));
    EXPECT_EQ(balance_of(load_of(s, chosen, ints({}), 0, kind), {}, 2).loss, 0);
    EXPECT_EQ(z_of(s), 0);
    EXPECT_EQ(values_of(dlogits_of(main_gradient(s, chosen, poisoned({0, 2}, Dtype::kFp32), kind, true))), Values());
  }
}

TEST(RouterKernel, LossesOfWrongShapesAndDtypesAreRefused) {
  const Tensor s = poisoned({2, 6}, Dtype::kFp32), bf16 = poisoned({2, 6}, Dtype::kBf16),
               other = poisoned({2, 6}, Dtype::kFp64), part = poisoned({2, 7}, Dtype::kFp32).columns(0, 6),
               w = poisoned({2, 3}, Dtype::kFp32), one = fp64({0});
  const Tensor chosen = device_ints({0, 1, 2, 3, 4, 5}, {2, 3}), q = ints({0, 0}), load = poisoned({1, 2, 6}, Dtype::kFp64);
  for (const Tensor& wrong : {bf16, other, part, chosen}) {
    refused([&] { router_load(stream(), load, s, wrong.dtype() == Dtype::kInt32 ? w : wrong, q, ScoreKind::kSoftmax); });
    refused([&] { balance_loss(stream(), one, wrong, load, one, 1, 1, 1); });
  }
  for (const Tensor& wrong : {bf16, part, chosen}) refused([&] { router_z_sum(stream(), one, wrong, q); });
  refused([&] { router_z_sum(stream(), poisoned({1}, Dtype::kFp32), s, q); });
  refused([&] { router_z_sum(stream(), one, s, ints({0})); });
  refused([&] { router_load(stream(), load, s, chosen, ints({0}), ScoreKind::kSoftmax); });
  refused([&] { router_load(stream(), s, s, chosen, q, ScoreKind::kSoftmax); });
  refused([&] { balance_loss(stream(), one, poisoned({1, 6}, Dtype::kFp32), load, fp64({1, 1}), 1, 1, 1); });
}

}  // namespace
}  // namespace ref5d::testing::moe::of_router_loss
