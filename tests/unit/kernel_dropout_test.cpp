#include <algorithm>
#include <numeric>

#include "common/kernels/dropout.h"
#include "common/kernels/philox.h"
#include "tests/support/kernel_repeat.h"

namespace ref5d::testing {
namespace {

using Values = std::vector<double>;

const DropoutKey kKey{.seed = 42, .step = 7, .layer = 3, .site = DropoutSite::kMlp};

// Two samples of three positions.
const Ints kSample{4, 4, 4, 9, 9, 9}, kOrder{0, 1, 2, 0, 1, 2};

// 1 where an element is kept.
Values mask(const Ints& sample, const Ints& order, std::int64_t columns, const DropoutKey& key, double p) {
  const auto rows = static_cast<std::int64_t>(sample.size());
  const Tensor y = poisoned({rows, columns}, Dtype::kFp64),
               ones = device_tensor(Values(std::size_t(rows * columns), 1.0), {rows, columns}, Dtype::kFp64);
  dropout(stream(), y, ones, ints(sample), ints(order), key, p);
  Values m = values_of(y);
  for (double& v : m) {
    EXPECT_TRUE(v == 0 || v == 1 / (1 - p)) << v;
    v = v != 0;
  }
  return m;
}

TEST(DropoutKernel, MaskIsTheDocumentedFunctionOfItsKey) {
  for (const std::int64_t columns : kAwkwardSizes) {
    for (const double p : {0.1, 0.5, 0.9}) {
      const Values m = mask(kSample, kOrder, columns, kKey, p);
      for (std::size_t t = 0; t < kSample.size(); ++t) {
        for (std::int64_t c = 0; c < columns; ++c) {
          const Uint4 r = philox(42 ^ (std::uint64_t{7} << 32),
                                 {std::uint32_t(kSample[t]), std::uint32_t(kOrder[t]), std::uint32_t(c / 4), 3u | 2u << 24});
          const std::uint32_t numbers[] = {r.x, r.y, r.z, r.w};
          const double u = numbers[c % 4] * 0x1p-32;
          ASSERT_EQ(m[t * std::size_t(columns) + std::size_t(c)], u >= p ? 1 : 0) << t << ", " << c;
        }
      }
    }
  }
}

TEST(DropoutKernel, KeptElementsAreScaledAndOthersZeroInEveryDtype) {
  for (const Dtype dtype : kFloatDtypes) {
    for (const std::int64_t columns : kAwkwardSizes) {
      const Values x = rounded(random_values(6 * columns, 1), dtype), m = mask(kSample, kOrder, columns, kKey, 0.3);
      const Tensor y = poisoned({6, columns}, dtype), tx = device_tensor(x, {6, columns}, dtype);
      dropout(stream(), y, tx, ints(kSample), ints(kOrder), kKey, 0.3);
      Values expected(x);
      for (std::size_t i = 0; i < x.size(); ++i) expected[i] *= m[i] / (1 - 0.3);
      EXPECT_LT(relative_error(values_of(y), expected), tolerance(dtype)) << columns;
      dropout(stream(), tx, tx, ints(kSample), ints(kOrder), kKey, 0.3);
      EXPECT_EQ(bits_of(tx), bits_of(y)) << "in place, " << columns;
    }
  }
}

// A relative error within bf16's tolerance would hide a wrong factor.
TEST(DropoutKernel, Bf16IsRoundedOnceFromTheScaledValue) {
  const std::int64_t columns = 300;
  const Values x = rounded(random_values(6 * columns, 2), Dtype::kBf16), m = mask(kSample, kOrder, columns, kKey, 0.3);
  const Tensor y = poisoned({6, columns}, Dtype::kBf16);
  dropout(stream(), y, device_tensor(x, {6, columns}, Dtype::kBf16), ints(kSample), ints(kOrder), kKey, 0.3);
  Values expected(x);
  for (std::size_t i = 0; i < x.size(); ++i)
    expected[i] = m[i] == 0 ? 0.0 : double(static_cast<float>(x[i]) * static_cast<float>(1 / (1 - 0.3)));
  EXPECT_EQ(values_of(y), rounded(expected, Dtype::kBf16));
}

TEST(DropoutKernel, ADroppedNanOrInfinityIsGone) {
  const Tensor y = poisoned({1, 64}, Dtype::kFp32), x = device_tensor(Values(64, INFINITY), {1, 64}, Dtype::kFp32);
  dropout(stream(), y, x, ints({0}), ints({0}), kKey, 0.5);
  const Values v = values_of(y);
  EXPECT_GT(std::count(v.begin(), v.end(), 0.0), 10);
  EXPECT_EQ(std::count(v.begin(), v.end(), 0.0) + std::count(v.begin(), v.end(), INFINITY), 64);
}

// Whoever holds a row, and whatever else they hold, draws the same mask (P27).
TEST(DropoutKernel, P27_MaskDoesNotDependOnTheLayout) {
  const std::int64_t columns = 65;
  const Values whole = mask(kSample, kOrder, columns, kKey, 0.4);
  Ints rows(6);
  std::iota(rows.begin(), rows.end(), 0);
  for (const Ints& chosen : {Ints{0, 1, 2}, Ints{3, 4, 5}, Ints{5, 3, 1, 0, 2, 4}, Ints{2}, Ints{4, 4}}) {
    Ints sample, order;
    for (const std::int32_t r : chosen) {
      sample.push_back(kSample[std::size_t(r)]);
      order.push_back(kOrder[std::size_t(r)]);
    }
    const Values part = mask(sample, order, columns, kKey, 0.4);
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      const auto from = whole.begin() + chosen[i] * columns;
      EXPECT_TRUE(std::equal(from, from + columns, part.begin() + std::ptrdiff_t(i) * columns)) << "row " << chosen[i];
    }
  }
}

TEST(DropoutKernel, EveryPartOfTheKeyChangesTheMask) {
  const Values base = mask({0}, {0}, 256, kKey, 0.5);
  std::vector<Values> others;
  for (auto change : std::initializer_list<void (*)(DropoutKey&)>{
           [](DropoutKey& k) { k.seed = 43; }, [](DropoutKey& k) { k.seed += std::uint64_t{1} << 40; },
           [](DropoutKey& k) { k.step = 8; }, [](DropoutKey& k) { k.layer = 4; },
           [](DropoutKey& k) { k.site = DropoutSite::kEmbedding; }, [](DropoutKey& k) { k.site = DropoutSite::kAttention; }}) {
    DropoutKey key = kKey;
    change(key);
    others.push_back(mask({0}, {0}, 256, key, 0.5));
  }
  others.push_back(mask({1}, {0}, 256, kKey, 0.5));
  others.push_back(mask({0}, {1}, 256, kKey, 0.5));
  others.push_back(base);
  for (std::size_t i = 0; i < others.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      int differ = 0;
      for (std::size_t c = 0; c < 256; ++c) differ += others[i][c] != others[j][c];
      EXPECT_NEAR(differ, 128, 4 * 8) << i << " and " << j;  // 4 sigma of 256 fair coins
    }
  }
  Values shifted(base.begin() + 1, base.end());  // channels differ from one another
  int differ = 0;
  for (std::size_t c = 0; c < 255; ++c) differ += shifted[c] != base[c];
  EXPECT_NEAR(differ, 128, 4 * 8);
}

TEST(DropoutKernel, DropsTheRightShare) {
  Ints sample(64, 5), order(64);
  std::iota(order.begin(), order.end(), 100);
  const double n = 64 * 256;
  for (const double p : {0.01, 0.1, 0.3, 0.5, 0.9}) {
    const Values m = mask(sample, order, 256, kKey, p);
    const double kept = std::accumulate(m.begin(), m.end(), 0.0);
    EXPECT_NEAR(kept, n * (1 - p), 4 * std::sqrt(n * p * (1 - p))) << p;
  }
}

TEST(DropoutKernel, BackwardIsTheGradientOfForward) {
  const Values x = random_values(6 * 9, 2), dy = random_values(6 * 9, 3);
  auto apply = [&](const Values& at) {
    const Tensor y = poisoned({6, 9}, Dtype::kFp64);
    dropout(stream(), y, device_tensor(at, {6, 9}, Dtype::kFp64), ints(kSample), ints(kOrder), kKey, 0.3);
    return values_of(y);
  };
  EXPECT_LT(relative_error(apply(dy), finite_difference(apply, x, dy)), 1e-7);
}

TEST(DropoutKernel, ProbabilityZeroCopies) {
  for (const Dtype dtype : kFloatDtypes) {
    const Tensor x = device_tensor(random_values(6 * 33, 4), {6, 33}, dtype), y = poisoned({6, 33}, dtype);
    dropout(stream(), y, x, ints(kSample), ints(kOrder), kKey, 0);
    EXPECT_EQ(bits_of(y), bits_of(x));
    dropout(stream(), x, x, ints(kSample), ints(kOrder), kKey, 0);
    EXPECT_EQ(bits_of(y), bits_of(x));
  }
}

TEST(DropoutKernel, RepeatsBitwiseAndTakesNoRows) {
  expect_repeatable([] {
    const Tensor x = device_tensor(random_values(6 * 333, 5), {6, 333}, Dtype::kFp32);
    dropout(stream(), x, x, ints(kSample), ints(kOrder), kKey, 0.2);
    return x;
  });
  const Tensor none = poisoned({0, 8}, Dtype::kFp32);
  dropout(stream(), none, none, ints({}), ints({}), kKey, 0.5);
  EXPECT_TRUE(values_of(none).empty());
}

TEST(DropoutKernel, WrongArgumentsAreRefused) {
  const Tensor x = poisoned({2, 4}, Dtype::kFp32), other = poisoned({2, 4}, Dtype::kFp64),
               wide = poisoned({2, 8}, Dtype::kFp32), two = ints({0, 1}), three = ints({0, 1, 2});
  for (const double p : {-0.1, 1.0, 1.5, std::nan("")})
    EXPECT_THROW(dropout(stream(), x, x, two, two, kKey, p), std::logic_error);
  EXPECT_THROW(dropout(stream(), other, x, two, two, kKey, 0.5), std::logic_error);
  EXPECT_THROW(dropout(stream(), x, wide.columns(0, 4), two, two, kKey, 0.5), std::logic_error);
  EXPECT_THROW(dropout(stream(), x, x, three, two, kKey, 0.5), std::logic_error);
  EXPECT_THROW(dropout(stream(), x, x, two, three, kKey, 0.5), std::logic_error);
  DropoutKey key = kKey;
  key.layer = 1u << 24;
  EXPECT_THROW(dropout(stream(), x, x, two, two, key, 0.5), std::logic_error);
}

}  // namespace
}  // namespace ref5d::testing
