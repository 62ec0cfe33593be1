// The bias that follows the load.
#include <numeric>

#include "common/kernels/correction_bias.h"
#include "tests/support/kernel_repeat.h"
#include "tests/support/moe_kernel_testing.h"

namespace ref5d::testing::moe::of_correction_bias {
namespace {

Values moved(const Values& bias, const Values& counts, double speed, Dtype dtype) {
  const auto experts = static_cast<std::int64_t>(bias.size());
  const Tensor b = device_tensor(bias, {experts}, dtype), n = device_tensor(counts, {experts}, Dtype::kFp64);
  move_correction_bias(stream(), b, n, speed);
  EXPECT_EQ(values_of(n), counts) << "the counts changed";
  return values_of(b);
}

TEST(CorrectionBias, MovesBySpeedTowardsTheMean) {
  for (const Dtype dtype : kWide) {
    EXPECT_EQ(moved({0, 0, 0, 0}, {0, 10, 5, 5}, 0.125, dtype), (Values{0.125, -0.125, 0, 0}));
    EXPECT_EQ(moved({1, -1, 2, 0.5}, {4, 6, 5, 5}, 0.125, dtype), (Values{1.125, -1.125, 2, 0.5}));
    EXPECT_EQ(moved({0, 0, 0}, {1, 1, 2}, 0.001, dtype), rounded({0.001, 0.001, -0.001}, dtype)) << "4/3 is no double";
    EXPECT_EQ(moved({0, 0, 0}, {2, 1, 2}, 0.001, dtype), rounded({-0.001, 0.001, -0.001}, dtype));
    EXPECT_EQ(moved({3}, {7}, 0.5, dtype), Values{3}) << "a lone expert has the mean";
    EXPECT_EQ(moved({3, 4}, {0, 0}, 0.5, dtype), (Values{3, 4})) << "no tokens";
    // The bias's own rounding, once.
    const Values b = rounded({0.7, -0.3}, dtype);
    EXPECT_EQ(moved(b, {9, 1}, 0.001, dtype), rounded({b[0] - 0.001, b[1] + 0.001}, dtype));
  }
}

// Also where a sum times a rounded 1/7 is not the count.
TEST(CorrectionBias, EqualCountsKeepEveryBit) {
  const Values bias{0.1, -0.0, 0, 1e-40, -1e30, 1.0 / 3, -7};
  for (const Dtype dtype : kWide)
    for (const double count : {0.0, 1.0, 1000003.0, 0x1p40 + 1}) {
      const Tensor b = device_tensor(bias, {7}, dtype), before = device_tensor(bias, {7}, dtype);
      move_correction_bias(stream(), b, device_tensor(Values(7, count), {7}, Dtype::kFp64), 0.001);
      EXPECT_EQ(bits_of(b), bits_of(before)) << count;
    }
}

// One token more or less than the mean among very many.
TEST(CorrectionBias, OneTokenCountsAmongVeryMany) {
  const double n = 0x1p50;
  for (const Dtype dtype : kWide) {
    EXPECT_EQ(moved({0, 0, 0}, {n, n + 1, n - 1}, 0.5, dtype), (Values{0, -0.5, 0.5}));
    EXPECT_EQ(moved({0, 0, 0}, {n, n, n + 1}, 0.5, dtype), (Values{0.5, 0.5, -0.5}));
  }
}

TEST(CorrectionBias, AddsUpToTheSumOfSigns) {
  for (const Dtype dtype : kWide)
    for (const std::int64_t experts : {1, 2, 3, 8, 33, 600}) {  // the last are several blocks
      const Tensor bias = device_tensor(Values(at(experts, 1), 0.0), {experts}, dtype);
      Values expected(at(experts, 1));
      for (unsigned step = 0; step < 9; ++step) {
        const Ints counts = random_ints(experts, 0, 5, step);  // many have the mean where it is whole
        const auto sum = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
        move_correction_bias(stream(), bias, device_tensor(doubles(counts), {experts}, Dtype::kFp64), 0x1p-10);
        for (std::size_t e = 0; e < counts.size(); ++e) {
          const std::int64_t below = sum - counts[e] * experts;
          expected[e] += 0x1p-10 * double((below > 0) - (below < 0));
        }
      }
      EXPECT_EQ(values_of(bias), expected) << experts;
    }
}

TEST(CorrectionBias, RepeatsBitwise) {
  const Values numbers = doubles(random_ints(600, 0, 7, 26)), before = random_values(600, 27);
  expect_repeatable([&] {
    const Tensor bias = device_tensor(before, {600}, Dtype::kFp32);
    move_correction_bias(stream(), bias, device_tensor(numbers, {600}, Dtype::kFp64), 0.001);
    return bias;
  });
}

TEST(CorrectionBias, OfNoExperts) {
  for (const Dtype dtype : kWide) move_correction_bias(stream(), poisoned({0}, dtype), poisoned({0}, Dtype::kFp64), 1);
}

TEST(CorrectionBias, WrongTensorsAreRefused) {
  const Tensor tokens = poisoned({3}, Dtype::kFp64);
  for (const Dtype dtype : kWide) {
    const Tensor bias = poisoned({3}, dtype);
    EXPECT_NO_THROW(move_correction_bias(stream(), bias, tokens, 1));
    for (const Tensor& wrong :
         {poisoned({3}, Dtype::kFp32), poisoned({1, 3}, Dtype::kFp64), poisoned({2}, Dtype::kFp64), unset({3}), Tensor()})
      refused([&] { move_correction_bias(stream(), bias, wrong, 1); });
    for (const Tensor& wrong :
         {poisoned({3}, Dtype::kBf16), poisoned({3, 1}, dtype), poisoned({4}, dtype), unset({3}), Tensor()})
      refused([&] { move_correction_bias(stream(), wrong, tokens, 1); });
  }
}

}  // namespace
}  // namespace ref5d::testing::moe::of_correction_bias
