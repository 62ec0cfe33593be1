#include <numbers>

#include "common/kernels/philox.h"
#include "common/kernels/random.h"
#include "tests/support/kernel_repeat.h"

namespace ref5d::testing {
namespace {

using Values = std::vector<double>;

TEST(Philox, KnownAnswers) {  // of the authors' library, Random123
  auto expect_words = [](std::uint64_t key, Uint4 counter, Uint4 expected) {
    const Uint4 r = philox(key, counter);
    EXPECT_EQ(r.x, expected.x);
    EXPECT_EQ(r.y, expected.y);
    EXPECT_EQ(r.z, expected.z);
    EXPECT_EQ(r.w, expected.w);
  };
  expect_words(0, {0, 0, 0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  expect_words(0xffffffffffffffff, {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
               {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  expect_words(0x299f31d0a4093822, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
               {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST(HashBytes, IsFnv1a) {  // published test vectors
  EXPECT_EQ(hash_bytes(""), 0xcbf29ce484222325u);
  EXPECT_EQ(hash_bytes("a"), 0xaf63dc4c8601ec8cu);
  EXPECT_EQ(hash_bytes("foobar"), 0x85944171f73967e8u);
  EXPECT_EQ(hash_bytes("bar", hash_bytes("foo")), hash_bytes("foobar"));
  EXPECT_NE(hash_bytes("model.layers.1.mlp.up_proj.weight"), hash_bytes("model.layers.2.mlp.up_proj.weight"));
}

Values normal(const Shape& shape, const GlobalWindow& window, Dtype dtype, std::uint64_t seed = 1, std::uint64_t key = 2,
              double mean = 0, double std = 1) {
  const Tensor t = poisoned(shape, dtype);
  fill_normal(stream(), t, window, seed, key, mean, std);
  return values_of(t);
}

TEST(FillNormal, IsTheDocumentedFunctionOfSeedKeyAndIndex) {
  const std::uint64_t seed = 0x123456789abcdef0, key = hash_bytes("w");
  const GlobalWindow window{
      .row_begin = 70000, .column_begin = 5, .global_columns = 100000};  // elements up to 7e9, beyond 2^32
  const Values v = normal({3, 7}, window, Dtype::kFp64, seed, key, 0.25, 0.02);
  for (std::uint64_t r = 0; r < 3; ++r) {
    for (std::uint64_t c = 0; c < 7; ++c) {
      const std::uint64_t i = (70000 + r) * 100000 + 5 + c, pair = i / 2;
      const Uint4 x =
          philox(seed, {std::uint32_t(pair), std::uint32_t(pair >> 32), std::uint32_t(key), std::uint32_t(key >> 32)});
      const double a = (double((std::uint64_t{x.x} << 32 | x.y) >> 11) + 1) * 0x1p-53;
      const double b = 2 * std::numbers::pi * (double((std::uint64_t{x.z} << 32 | x.w) >> 11) * 0x1p-53);
      const double z = std::sqrt(-2 * std::log(a)) * (i % 2 == 0 ? std::cos(b) : std::sin(b));
      EXPECT_NEAR(v[r * 7 + c], 0.25 + 0.02 * z, 3e-8);
    }
  }
}

TEST(FillNormal, AnyWindowIsTheSliceOfTheWhole) {
  const std::int64_t rows = 12, columns = 31;
  for (const Dtype dtype : kFloatDtypes) {
    const Values whole = normal({rows, columns}, {0, 0, columns}, dtype);
    for (const auto& [r0, r1, c0, c1] : std::vector<std::array<std::int64_t, 4>>{
             {0, 12, 0, 31}, {0, 6, 0, 31}, {6, 12, 0, 31}, {0, 12, 3, 4}, {0, 12, 16, 31}, {5, 7, 1, 30}, {11, 12, 30, 31}}) {
      const Values part = normal({r1 - r0, c1 - c0}, {r0, c0, columns}, dtype);
      for (std::int64_t r = r0; r < r1; ++r) {
        for (std::int64_t c = c0; c < c1; ++c) {
          ASSERT_EQ(part[std::size_t((r - r0) * (c1 - c0) + c - c0)], whole[std::size_t(r * columns + c)]);
        }
      }
    }
  }
}

TEST(FillNormal, EveryDtypeStartsFromTheSameFp32Weights) {
  const Values fp64 = normal({9, 65}, {0, 0, 65}, Dtype::kFp64);
  EXPECT_EQ(fp64, rounded(fp64, Dtype::kFp32));
  EXPECT_EQ(normal({9, 65}, {0, 0, 65}, Dtype::kFp32), fp64);
  EXPECT_EQ(normal({9, 65}, {0, 0, 65}, Dtype::kBf16), rounded(fp64, Dtype::kBf16));
}

TEST(FillNormal, HasTheMomentsOfANormalDistribution) {
  const std::int64_t n = 40000;
  const Values v = normal({200, 200}, {0, 0, 200}, Dtype::kFp64, 3, 4, 0.5, 2);
  double moments[5] = {};
  int beyond2 = 0;
  for (const double x : v) {
    const double z = (x - 0.5) / 2;
    double power = 1;
    for (double& m : moments) {
      m += power / double(n);
      power *= z;
    }
    beyond2 += std::fabs(z) > 2;
  }
  const double sigma = 1 / std::sqrt(double(n));
  EXPECT_NEAR(moments[1], 0, 4 * sigma);
  EXPECT_NEAR(moments[2], 1, 4 * std::sqrt(2) * sigma);
  EXPECT_NEAR(moments[3], 0, 4 * std::sqrt(15) * sigma);
  EXPECT_NEAR(moments[4], 3, 4 * std::sqrt(96) * sigma);
  EXPECT_NEAR(beyond2 / double(n), 0.0455, 4 * std::sqrt(0.0455 * 0.9545) * sigma);
  double neighbours = 0;  // correlation of one element with the next
  for (std::size_t i = 1; i < v.size(); ++i) neighbours += (v[i] - 0.5) * (v[i - 1] - 0.5) / 4 / double(n);
  EXPECT_NEAR(neighbours, 0, 4 * sigma);
}

TEST(FillNormal, SeedAndKeyMatter) {
  const Values base = normal({1, 64}, {0, 0, 64}, Dtype::kFp64, 1, 2);
  for (const auto& [seed, key] : std::vector<std::array<std::uint64_t, 2>>{
           {2, 2}, {1, 3}, {1 + (std::uint64_t{1} << 32), 2}, {1, 2 + (std::uint64_t{1} << 32)}}) {
    const Values other = normal({1, 64}, {0, 0, 64}, Dtype::kFp64, seed, key);
    double dot = 0;
    for (std::size_t i = 0; i < 64; ++i) {
      EXPECT_NE(base[i], other[i]);
      dot += base[i] * other[i];
    }
    EXPECT_LT(std::fabs(dot), 4 * 8);
  }
}

TEST(FillNormal, FillsColumnsOfAWiderMatrixRepeatablyAndTakesNoRows) {
  const Tensor wide = device_tensor(Values(4 * 10, 9.0), {4, 10}, Dtype::kFp32);
  fill_normal(stream(), wide.columns(3, 8), {0, 0, 5}, 1, 2, 0, 1);
  const Values v = values_of(wide), dense = normal({4, 5}, {0, 0, 5}, Dtype::kFp32);
  for (std::size_t r = 0; r < 4; ++r) {
    for (std::size_t c = 0; c < 10; ++c) EXPECT_EQ(v[r * 10 + c], c < 3 || c >= 8 ? 9.0 : dense[r * 5 + c - 3]);
  }
  expect_repeatable([] {
    const Tensor t = poisoned({64, 33}, Dtype::kBf16);
    fill_normal(stream(), t, {0, 0, 33}, 5, 6, 0, 1);
    return t;
  });
  EXPECT_TRUE(normal({0, 5}, {0, 0, 5}, Dtype::kFp32).empty());
}

TEST(FillNormal, AWindowOutsideOfTheGlobalMatrixIsRefused) {
  const Tensor t = poisoned({2, 3}, Dtype::kFp32);
  EXPECT_THROW(fill_normal(stream(), t, {0, 2, 4}, 1, 2, 0, 1), std::logic_error);
  EXPECT_THROW(fill_normal(stream(), t, {0, -1, 4}, 1, 2, 0, 1), std::logic_error);
  EXPECT_THROW(fill_normal(stream(), t, {-1, 0, 4}, 1, 2, 0, 1), std::logic_error);
  EXPECT_THROW(fill_normal(stream(), device_ints({1, 2}, {1, 2}), {0, 0, 2}, 1, 2, 0, 1), std::logic_error);
}

TEST(FillConstant, FillsEveryDtype) {
  for (const Dtype dtype : kFloatDtypes) {
    for (const std::int64_t n : {std::int64_t{0}, std::int64_t{1}, std::int64_t{33}, kSeveralBlocks}) {
      const Tensor t = poisoned({n}, dtype);
      fill_constant(stream(), t, 0.1);
      EXPECT_EQ(values_of(t), rounded(Values(std::size_t(n), 0.1), dtype));
    }
  }
}

}  // namespace
}  // namespace ref5d::testing
