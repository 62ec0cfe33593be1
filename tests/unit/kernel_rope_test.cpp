#include <array>

#include "common/kernels/rope.h"
#include "tests/support/kernel_repeat.h"

namespace ref5d::testing {
namespace {

using Values = std::vector<double>;

RopeTable table_for(const Ints& positions, std::int64_t head_dim, Dtype dtype, double theta = 10000) {
  return make_rope_table(stream(), ints(positions), ints(Ints(positions.size(), 0)), head_dim, theta, dtype);
}

// Hugging Face's formula to the letter: x * cos + rotate_half(x) * sin, with the D/2 angles repeated for both halves.
Values rotate_half_reference(const Values& x, const Ints& positions, std::int64_t heads, std::int64_t head_dim, double theta) {
  Values y(x.size());
  for (std::size_t t = 0; t < positions.size(); ++t) {
    for (std::int64_t h = 0; h < heads; ++h) {
      const std::size_t base = (t * std::size_t(heads) + std::size_t(h)) * std::size_t(head_dim);
      for (std::int64_t i = 0; i < head_dim; ++i) {
        const std::int64_t half = head_dim / 2;
        const double angle = positions[t] / std::pow(theta, 2.0 * double(i % half) / double(head_dim));
        const double rotated = i < half ? -x[base + std::size_t(i + half)] : x[base + std::size_t(i - half)];
        y[base + std::size_t(i)] = x[base + std::size_t(i)] * std::cos(angle) + rotated * std::sin(angle);
      }
    }
  }
  return y;
}

Values turned(const Values& x, const Ints& positions, std::int64_t heads, std::int64_t head_dim, bool inverse = false) {
  const Tensor t = device_tensor(x, {static_cast<std::int64_t>(positions.size()), heads * head_dim}, Dtype::kFp64);
  rope(stream(), t, table_for(positions, head_dim, Dtype::kFp64), heads, inverse);
  return values_of(t);
}

constexpr std::array<std::array<std::int64_t, 2>, 6> kHeadShapes = {{{1, 2}, {3, 4}, {5, 6}, {2, 16}, {7, 66}, {1, 600}}};

TEST(RopeKernel, MatchesRotateHalfInEveryDtypeAndLeavesTheRestOfAWiderMatrix) {
  const Ints positions{0, 1, 2, 63, 64, 1000, 5};
  const auto rows = static_cast<std::int64_t>(positions.size());
  for (const Dtype dtype : kFloatDtypes) {
    for (const auto [heads, head_dim] : kHeadShapes) {
      const std::int64_t width = heads * head_dim, wide = width + 6;
      const Values all = rounded(random_values(rows * wide, 1), dtype);
      const Tensor whole = device_tensor(all, {rows, wide}, dtype);
      rope(stream(), whole.columns(4, 4 + width), table_for(positions, head_dim, dtype), heads, false);
      const Values result = values_of(whole);
      Values x, y;
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t c = 0; c < wide; ++c) {
          const auto i = static_cast<std::size_t>(r * wide + c);
          if (c < 4 || c >= 4 + width) {
            EXPECT_EQ(result[i], all[i]) << "column " << c;
          } else {
            x.push_back(all[i]);
            y.push_back(result[i]);
          }
        }
      }
      EXPECT_LT(relative_error(y, rotate_half_reference(x, positions, heads, head_dim, 10000)), tolerance(dtype)) << head_dim;
    }
  }
}

TEST(RopeKernel, TableUsesOrderMinusStartAndTheBase) {
  const RopeTable table = make_rope_table(stream(), ints({10, 11, 12, 1000}), ints({10, 10, 3, 900}), 4, 500000, Dtype::kBf16);
  EXPECT_EQ(table.cos.dtype(), Dtype::kFp32);  // the accumulator's dtype
  const Values c = values_of(table.cos), s = values_of(table.sin);
  const double positions[] = {0, 1, 9, 100};
  for (std::size_t t = 0; t < 4; ++t) {
    for (std::size_t j = 0; j < 2; ++j) {
      const double angle = positions[t] * std::pow(500000.0, -double(j) / 2);
      EXPECT_NEAR(c[2 * t + j], std::cos(angle), 6e-8);
      EXPECT_NEAR(s[2 * t + j], std::sin(angle), 6e-8);
    }
  }
}

// At large positions an angle computed in fp32 would be off by 1e-3 and more.
TEST(RopeKernel, TableOfLongSequencesKeepsFp32Accuracy) {
  const RopeTable table = table_for({131071, 1000003}, 128, Dtype::kFp32);
  const Values c = values_of(table.cos);
  for (std::size_t t = 0; t < 2; ++t) {
    for (std::size_t j = 0; j < 64; ++j) {
      EXPECT_NEAR(c[64 * t + j], std::cos((t == 0 ? 131071 : 1000003) * std::pow(10000.0, -double(j) / 64)), 7e-8);
    }
  }
}

TEST(RopeKernel, InverseUndoesTheRotation) {
  const Ints positions{0, 3, 77, 4095};
  for (const auto [heads, head_dim] : kHeadShapes) {
    const Values x = random_values(4 * heads * head_dim, 2);
    const Values y = turned(x, positions, heads, head_dim);
    EXPECT_GT(relative_error(y, x), 0.1);
    EXPECT_LT(relative_error(turned(y, positions, heads, head_dim, true), x), 1e-14);
  }
}

// <rope(q, m), rope(k, n)> depends on m - n alone.
TEST(RopeKernel, ScoresDependOnTheDistanceAlone) {
  const std::int64_t head_dim = 16;
  const Values q = random_values(head_dim, 3), k = random_values(head_dim, 4);
  auto score = [&](std::int32_t m, std::int32_t n) {
    const Values a = turned(q, {m}, 1, head_dim), b = turned(k, {n}, 1, head_dim);
    double dot = 0;
    for (std::size_t i = 0; i < a.size(); ++i) dot += a[i] * b[i];
    return dot;
  };
  for (const std::int32_t shift : {1, 17, 5000}) {
    EXPECT_NEAR(score(9, 4), score(9 + shift, 4 + shift), 1e-11);
    EXPECT_NEAR(score(0, 30), score(shift, 30 + shift), 1e-11);
  }
  EXPECT_GT(std::fabs(score(9, 4) - score(9, 5)), 1e-3);
}

TEST(RopeKernel, InverseIsTheGradientOfForward) {
  const Ints positions{1, 8, 100};
  const Values x = random_values(3 * 2 * 6, 5), dy = random_values(3 * 2 * 6, 6);
  const Values expected = finite_difference([&](const Values& at) { return turned(at, positions, 2, 6); }, x, dy);
  EXPECT_LT(relative_error(turned(dy, positions, 2, 6, true), expected), 1e-7);
}

TEST(RopeKernel, RepeatsBitwiseAndTakesNoRows) {
  expect_repeatable([] {
    const Ints positions{4, 5, 6, 7, 8, 9};
    const Tensor x = device_tensor(random_values(6 * 4 * 16, 7), {6, 64}, Dtype::kBf16);
    rope(stream(), x, table_for(positions, 16, Dtype::kBf16), 4, false);
    return x;
  });
  const Tensor none = poisoned({0, 64}, Dtype::kFp32);
  rope(stream(), none, table_for({}, 16, Dtype::kFp32), 4, false);
  EXPECT_TRUE(values_of(none).empty());
}

TEST(RopeKernel, WrongShapesAndDtypesAreRefused) {
  EXPECT_THROW((void)table_for({1, 2}, 5, Dtype::kFp32), std::logic_error);
  EXPECT_THROW((void)table_for({1, 2}, 0, Dtype::kFp32), std::logic_error);
  EXPECT_THROW((void)make_rope_table(stream(), ints({1, 2}), ints({1}), 4, 10000, Dtype::kFp32), std::logic_error);
  const RopeTable table = table_for({1, 2}, 4, Dtype::kFp32);
  EXPECT_THROW(rope(stream(), poisoned({2, 8}, Dtype::kFp32), table, 3, false), std::logic_error);
  EXPECT_THROW(rope(stream(), poisoned({3, 8}, Dtype::kFp32), table, 2, false), std::logic_error);
  EXPECT_THROW(rope(stream(), poisoned({2, 8}, Dtype::kFp64), table, 2, false), std::logic_error);
}

}  // namespace
}  // namespace ref5d::testing
