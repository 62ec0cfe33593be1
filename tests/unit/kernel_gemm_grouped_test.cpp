// Products of several sizes at once: the bits of one product after the other.
#include <algorithm>
#include <random>

#include "common/kernels/gemm.h"
#include "tests/support/kernel_repeat.h"
#include "tests/support/kernel_testing.h"

namespace ref5d::testing {
namespace gemm_grouped_test {

using Values = std::vector<double>;

// Of random sizes, some of them 0. Results that are overwritten hold NaN before.
std::vector<GemmOperands> random_group(Transpose ta, Transpose tb, std::size_t products, Dtype dtype, Dtype output,
                                       unsigned seed) {
  std::mt19937 generator(seed);
  const auto size = [&](std::int64_t most) {
    const auto any = static_cast<std::int64_t>(generator() % 4);
    return any == 0 ? std::int64_t{0} : any == 1 ? std::int64_t{1} : 1 + static_cast<std::int64_t>(generator()) % most;
  };
  const auto matrix = [&](std::int64_t rows, std::int64_t columns, Transpose t) {
    if (t == Transpose::kYes) std::swap(rows, columns);
    return device_tensor(random_values(rows * (columns + 3), static_cast<unsigned>(generator())), {rows, columns + 3}, dtype)
        .columns(0, columns);
  };
  std::vector<GemmOperands> group;
  for (std::size_t i = 0; i < products; ++i) {
    const std::int64_t m = size(150), n = size(90), k = size(40);
    const double beta = generator() % 2 == 0 ? 0 : 0.5;
    const Values before = beta == 0 ? Values(static_cast<std::size_t>(m * n), std::nan("")) : random_values(m * n, seed);
    group.push_back({matrix(m, k, ta), matrix(k, n, tb), device_tensor(before, {m, n}, output), beta});
  }
  return group;
}

std::vector<GemmOperands> with_copied_results(std::vector<GemmOperands> group) {
  for (GemmOperands& p : group) p.c = device_tensor(values_of(p.c), p.c.shape(), p.c.dtype());
  return group;
}

void expect_one_after_the_other(GemmKind kind, Transpose ta, Transpose tb, const std::vector<GemmOperands>& group) {
  const std::vector<GemmOperands> alone = with_copied_results(group);
  gemm_grouped(stream(), kind, ta, tb, 0.75, group);
  for (std::size_t i = 0; i < group.size(); ++i) {
    gemm(stream(), kind, ta, tb, 0.75, alone[i].a, alone[i].b, alone[i].beta, alone[i].c);
    EXPECT_EQ(bits_of(group[i].c), bits_of(alone[i].c)) << "product " << i << " of " << group.size();
  }
}

TEST(GroupedGemmKernel, HasTheBitsOfOneProductAfterTheOther) {
  unsigned seed = 0;
  for (const Transpose ta : {Transpose::kNo, Transpose::kYes})
    for (const Transpose tb : {Transpose::kNo, Transpose::kYes})
      for (const auto& [dtype, output] : {std::pair{Dtype::kFp64, Dtype::kFp64},
                                          {Dtype::kFp32, Dtype::kFp32},
                                          {Dtype::kBf16, Dtype::kBf16},
                                          {Dtype::kBf16, Dtype::kFp32}})
        for (const std::size_t products : {0, 1, 5, 70})  // 70: three launches
          expect_one_after_the_other(GemmKind::kHand, ta, tb, random_group(ta, tb, products, dtype, output, ++seed));
  expect_one_after_the_other(GemmKind::kBlas, Transpose::kNo, Transpose::kYes,
                             random_group(Transpose::kNo, Transpose::kYes, 5, Dtype::kFp32, Dtype::kFp32, 1));
}

// Between rows lies what is not the result's; experts without rows leave their weights' gradient as beta makes it.
TEST(GroupedGemmKernel, WritesNothingElse) {
  for (const std::vector<std::int64_t>& rows : {std::vector<std::int64_t>{3, 0, 0}, {0, 0, 5}, {0, 0, 0}, {0, 70, 0}}) {
    const Tensor wide = device_tensor(Values(210, 7), {30, 7}, Dtype::kFp64);
    std::vector<GemmOperands> group;
    for (const std::int64_t r : rows) {
      const auto begin = static_cast<std::int64_t>(10 * group.size());
      group.push_back({device_tensor(Values(static_cast<std::size_t>(10 * r), 1), {r, 10}, Dtype::kFp64),
                       device_tensor(Values(static_cast<std::size_t>(4 * r), 2), {r, 4}, Dtype::kFp64),
                       wide.rows(begin, begin + 10).columns(1, 5)});
    }
    gemm_grouped(stream(), GemmKind::kHand, Transpose::kYes, Transpose::kNo, 1, group);
    const Values values = values_of(wide);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const bool of_result = i % 7 >= 1 && i % 7 < 5;
      EXPECT_EQ(values[i], of_result ? 2.0 * static_cast<double>(rows[i / 70]) : 7.0) << i;
    }
  }
}

TEST(GroupedGemmKernel, RepeatsBitwise) {
  expect_repeatable([] {
    const std::vector<GemmOperands> group = random_group(Transpose::kYes, Transpose::kNo, 9, Dtype::kFp32, Dtype::kFp32, 12);
    gemm_grouped(stream(), GemmKind::kHand, Transpose::kYes, Transpose::kNo, 1, group);
    const auto smaller = [](const GemmOperands& x, const GemmOperands& y) { return x.c.numel() < y.c.numel(); };
    return std::max_element(group.begin(), group.end(), smaller)->c;
  });
}

TEST(GroupedGemmKernel, WrongShapesAndDtypesAreRefused) {
  const auto refused = [](const std::vector<GemmOperands>& group) {
    EXPECT_THROW(gemm_grouped(stream(), GemmKind::kHand, Transpose::kNo, Transpose::kNo, 1, group), std::logic_error);
  };
  const GemmOperands right{poisoned({2, 3}, Dtype::kFp32), poisoned({3, 4}, Dtype::kFp32), poisoned({2, 4}, Dtype::kFp32)};
  GemmOperands other = right, wide = right, depth = right;
  other.c = poisoned({4, 2}, Dtype::kFp32);
  wide = {poisoned({2, 3}, Dtype::kFp64), poisoned({3, 4}, Dtype::kFp64), poisoned({2, 4}, Dtype::kFp64)};
  depth.b = poisoned({2, 4}, Dtype::kFp32);
  for (const GemmOperands& wrong : {other, wide, depth}) {
    refused({right, wrong});
    refused({wrong, right});
  }
}

}  // namespace gemm_grouped_test
}  // namespace ref5d::testing
