// What kernels are written with: ranges, reductions, shared memory, bf16, exp, random numbers.
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <limits>

#include "common/device/bf16.h"
#include "tests/support/kernel_testing.h"
#include "tests/unit/device_kernels.h"

namespace ref5d {
namespace {

using testing::device_tensor;
using testing::poisoned;
using testing::values_of;

Stream& stream() { return device().compute(); }

template <typename T>
std::vector<T> contents(const Tensor& t) {
  const HostTensor host = t.to_host(stream());
  std::vector<T> v(static_cast<std::size_t>(host.numel()));
  if (!v.empty()) std::memcpy(v.data(), host.data.data(), host.data.size());
  return v;
}

// Values with their exact bits, NaN's too.
Tensor floats(const std::vector<float>& values) {
  const auto n = static_cast<std::int64_t>(values.size());
  Tensor t = Tensor::empty({n}, Dtype::kFp32, MemoryCategory::kWorkspace, stream());
  copy_to_device(stream(), t.raw(), values.data(), values.size() * sizeof(float));
  return t;
}

TEST(GridRange, VisitsEveryIndexOnce) {
  for (std::int64_t n : {0, 1, 2, 7, 63, 64, 65, 255, 256, 257, 1000, 8191, 8192, 8193, 16385, 100003, 600000}) {
    for (unsigned blocks : {testing::blocks_for(n), 1u, 2u, 3u, 64u}) {
      const Tensor counts = Tensor::zeros({n}, Dtype::kInt32, MemoryCategory::kWorkspace, stream());
      testing::count_visits(stream(), counts, n, blocks);
      EXPECT_EQ(contents<std::int32_t>(counts), std::vector<std::int32_t>(static_cast<std::size_t>(n), 1))
          << "n = " << n << ", " << blocks << " blocks";
    }
  }
}

TEST(Launch, EveryBlockOfAThreeDimensionalGridRuns) {
  const int threads = device().threads();
  for (int t : {1, 2}) {
    device().set_threads(t);
    const Tensor out = Tensor::zeros({5, 3, 7}, Dtype::kInt32, MemoryCategory::kWorkspace, stream());
    testing::number_blocks(stream(), out);
    const auto got = contents<std::int32_t>(out);
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i], static_cast<std::int32_t>(i) + 1);
  }
  device().set_threads(threads);
}

TEST(BlockReduce, GivesEveryThreadTheSumAndTheMaximum) {
  const std::int64_t threads = testing::threads_per_block();
  for (Dtype dtype : {Dtype::kFp32, Dtype::kFp64}) {
    for (std::int64_t n : {1, 2, 31, 32, 33, 255, 256, 257, 1000}) {
      std::vector<double> x(static_cast<std::size_t>(n));
      double sum = 0;
      for (std::size_t i = 0; i < x.size(); ++i) {
        x[i] = -1.0 - static_cast<double>((i * 37) % 101);  // negative: a maximum that starts from 0 shows
        sum += x[i];
      }
      const Tensor sums = poisoned({threads}, dtype), maxima = poisoned({threads}, dtype);
      testing::reduce_in_block(stream(), sums, maxima, device_tensor(x, {n}, dtype));
      EXPECT_EQ(values_of(sums), std::vector<double>(static_cast<std::size_t>(threads), sum)) << n;
      const double largest = *std::max_element(x.begin(), x.end());
      EXPECT_EQ(values_of(maxima), std::vector<double>(static_cast<std::size_t>(threads), largest)) << n;
    }
  }
}

TEST(DynamicShared, HoldsWhatTheLaunchAskedFor) {
  for (std::int64_t n : {1, 3, 256, 1000, 5000}) {
    const std::vector<double> x = testing::random_values(n, 1);
    const Tensor out = poisoned({n}, Dtype::kFp64);
    testing::reverse_in_shared(stream(), out, device_tensor(x, {n}, Dtype::kFp64));
    EXPECT_EQ(values_of(out), std::vector<double>(x.rbegin(), x.rend())) << n;
  }
}

// The nearest of the two bf16 numbers around a float, by their distances in fp64; the even one if both are as near.
std::uint16_t nearest_bf16(float f) {
  const auto bits = std::bit_cast<std::uint32_t>(f);
  const auto below = static_cast<std::uint16_t>(bits >> 16), above = static_cast<std::uint16_t>(below + 1);  // in magnitude
  const auto value = [](std::uint16_t b) {
    // One step beyond the largest finite number stands for 2^128 when distances are compared.
    if ((b & 0x7fffu) == 0x7f80u) return (b & 0x8000u) != 0 ? -std::ldexp(1.0, 128) : std::ldexp(1.0, 128);
    return static_cast<double>(std::bit_cast<float>(static_cast<std::uint32_t>(b) << 16));
  };
  const double to_below = std::abs(static_cast<double>(f) - value(below));
  const double to_above = std::abs(static_cast<double>(f) - value(above));
  if (to_below != to_above) return to_below < to_above ? below : above;
  return (below & 1u) == 0 ? below : above;
}

TEST(Bf16, RoundsToNearestEven) {
  std::vector<float> x;
  for (std::uint32_t upper = 0; upper < 0x10000u; ++upper) {
    for (std::uint32_t lower : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
      x.push_back(std::bit_cast<float>(upper << 16 | lower));
  }
  const auto n = static_cast<std::int64_t>(x.size());
  const Tensor out = Tensor::empty({n}, Dtype::kBf16, MemoryCategory::kWorkspace, stream());
  const Tensor back = Tensor::empty({n}, Dtype::kFp32, MemoryCategory::kWorkspace, stream());
  testing::to_bf16(stream(), out, back, floats(x));
  const auto on_device = contents<std::uint16_t>(out);
  const auto returned = contents<float>(back);
  int wrong = 0;
  for (std::size_t i = 0; i < x.size() && wrong < 10; ++i) {
    const bf16 on_host(x[i]);
    bool right = on_host.bits == on_device[i];
    if (std::isnan(x[i])) {
      right =
          std::isnan(static_cast<float>(on_host)) && std::isnan(returned[i]) && std::signbit(x[i]) == (on_device[i] >> 15 != 0);
    } else if (std::isinf(x[i])) {
      right = right && returned[i] == x[i];
    } else {
      right = right && on_host.bits == nearest_bf16(x[i]) &&
              std::bit_cast<std::uint32_t>(returned[i]) == std::uint32_t{on_device[i]} << 16;
    }
    if (right) continue;
    ++wrong;
    ADD_FAILURE() << std::hex << std::bit_cast<std::uint32_t>(x[i]) << " became " << on_host.bits << " on the host and "
                  << on_device[i] << " on the device";
  }
}

TEST(Bf16, KnownValues) {
  EXPECT_EQ(static_cast<float>(bf16(1.0f + 1e-4f)), 1.0f);
  EXPECT_EQ(static_cast<float>(bf16(1.0f + 0.00390625f)), 1.0f);           // a tie goes to even: down
  EXPECT_EQ(static_cast<float>(bf16(1.0f + 3 * 0.00390625f)), 1.015625f);  // and up
  EXPECT_EQ(bf16(std::numeric_limits<float>::max()).bits, 0x7f80);         // nearer to 2^128 than to the largest bf16
  EXPECT_EQ(bf16(std::numeric_limits<float>::denorm_min()).bits, 0);
  EXPECT_EQ(bf16(-0.0f).bits, 0x8000);
  EXPECT_EQ(static_cast<double>(bf16(0.5)), 0.5);
}

// Distance in units of the last place of the fp32 number nearest to the truth, denormal ones included.
double ulps(float got, double truth) {
  int exponent = 0;
  std::frexp(truth, &exponent);
  return std::abs(static_cast<double>(got) - truth) / std::ldexp(1.0, std::max(exponent - 24, -149));
}

TEST(Exp, IsWithinTwoUlpsOverTheWholeRange) {
  std::vector<float> x;
  for (double v = -104; v <= 88.7; v += 0.00071) x.push_back(static_cast<float>(v));
  for (int e = -40; e < 0; ++e) {
    x.push_back(static_cast<float>(std::ldexp(1.1, e)));
    x.push_back(static_cast<float>(-std::ldexp(1.1, e)));
  }
  const Tensor out = poisoned({static_cast<std::int64_t>(x.size())}, Dtype::kFp32);
  testing::exponential(stream(), out, floats(x));
  const auto got = contents<float>(out);
  double worst = 0, at = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double u = ulps(got[i], std::exp(static_cast<double>(x[i])));
    if (!(u <= worst)) worst = u, at = x[i];
  }
  EXPECT_LE(worst, 2) << "at " << at;
}

TEST(Exp, KnownValues) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const std::vector<float> x = {-kInf, kInf, 0.0f, -0.0f, -1e30f, 1e30f, 89.0f, -200.0f, -103.0f, std::nanf("")};
  const Tensor out = poisoned({static_cast<std::int64_t>(x.size())}, Dtype::kFp32);
  testing::exponential(stream(), out, floats(x));
  const auto got = contents<float>(out);
  const std::vector<float> expected = {0, kInf, 1, 1, 0, kInf, kInf, 0, std::ldexp(1.0f, -149), 0};
  for (std::size_t i = 0; i + 1 < x.size(); ++i) EXPECT_EQ(got[i], expected[i]) << "exp(" << x[i] << ")";
  EXPECT_TRUE(std::isnan(got.back()));
}

TEST(ExpOfNegative, IsExpWhereThatIsNormal) {
  std::vector<float> x;
  for (double v = -87.2; v <= 1; v += 0.00071) x.push_back(static_cast<float>(v));
  const auto n = static_cast<std::int64_t>(x.size());
  const Tensor out = poisoned({n}, Dtype::kFp32), expected = poisoned({n}, Dtype::kFp32);
  testing::exponential_of_negative(stream(), out, floats(x));
  testing::exponential(stream(), expected, floats(x));
  EXPECT_EQ(contents<float>(out), contents<float>(expected));
}

TEST(ExpOfNegative, KnownValues) {
  const std::vector<float> x = {0, -0.0f, -200, -1e30f, -std::numeric_limits<float>::infinity(), std::nanf("")};
  const Tensor out = poisoned({static_cast<std::int64_t>(x.size())}, Dtype::kFp32);
  testing::exponential_of_negative(stream(), out, floats(x));
  const auto got = contents<float>(out);
  const std::vector<float> expected = {1, 1, 0, 0, 0, 0};
  for (std::size_t i = 0; i + 1 < x.size(); ++i) EXPECT_EQ(got[i], expected[i]) << "exp(" << x[i] << ")";
  EXPECT_TRUE(std::isnan(got.back()));
}

TEST(Exp, InFp64) {
  std::vector<double> x = testing::random_values(1000, 1, 50.0);
  const Tensor out = poisoned({1000}, Dtype::kFp64);
  testing::exponential(stream(), out, device_tensor(x, {1000}, Dtype::kFp64));
  const auto got = values_of(out);
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(got[i] / std::exp(x[i]), 1.0, 1e-15) << x[i];
}

TEST(Philox, KnownAnswersOnTheDevice) {  // of the authors' library, Random123
  struct Answer {
    std::uint64_t key, counter_low, counter_high;
    std::vector<std::uint32_t> words;
  };
  const Answer answers[] = {
      {0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {~0ull, ~0ull, ~0ull, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      {0x299f31d0a4093822, 0x85a308d3243f6a88, 0x0370734413198a2e, {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}};
  for (const Answer& a : answers) {
    const Tensor out = Tensor::zeros({4}, Dtype::kInt32, MemoryCategory::kWorkspace, stream());
    testing::philox_on_device(stream(), out, a.key, a.counter_low, a.counter_high);
    EXPECT_EQ(contents<std::uint32_t>(out), a.words);
  }
}

}  // namespace
}  // namespace ref5d
