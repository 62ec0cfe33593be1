#include <algorithm>
#include <limits>
#include <numeric>
#include <random>

#include "common/kernels/rows.h"
#include "tests/support/kernel_repeat.h"

namespace ref5d::of_take_rows {
namespace {

using namespace ref5d::testing;
using Values = std::vector<double>;

constexpr Dtype kDtypes[] = {Dtype::kFp64, Dtype::kFp32, Dtype::kBf16, Dtype::kInt32};

Tensor tensor_of(const Values& values, const Shape& shape, Dtype dtype) {
  if (dtype == Dtype::kInt32) return device_ints(Ints(values.begin(), values.end()), shape);
  return device_tensor(values, shape, dtype);
}
// Whole numbers, so that every dtype holds them.
Values numbers(std::int64_t n, double first = 1) {
  Values v(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = static_cast<double>((static_cast<std::int64_t>(i) + 3) % 251) + first;
  return v;
}

TEST(TakeRowsKernel, TakesRowsBetweenLeadingDimsAndLeavesTheRest) {
  const std::int64_t x_rows = 5;
  constexpr auto kLeast = std::numeric_limits<std::int32_t>::min(), kGreatest = std::numeric_limits<std::int32_t>::max();
  // Twice, and outside of x on either side.
  const Ints index{4, 0, -1, 4, 2, 5, kLeast, 3, kGreatest, -100};
  const auto rows = static_cast<std::int64_t>(index.size());
  std::vector<std::int64_t> widths = kAwkwardSizes;
  widths.push_back(300);  // more than a block has threads
  for (const Dtype dtype : kDtypes)
    for (const std::int64_t columns : widths) {
      const std::int64_t x_ld = columns + 4, y_ld = columns + 3;
      const Values x = numbers(x_rows * x_ld);
      Values expected(static_cast<std::size_t>(rows * y_ld), 7.0);
      const Tensor y = tensor_of(expected, {rows, y_ld}, dtype), from = tensor_of(x, {x_rows, x_ld}, dtype);
      for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t c = 0; c < columns; ++c) {
          const std::int64_t row = index[static_cast<std::size_t>(r)];
          const bool present = row >= 0 && row < x_rows;
          expected[static_cast<std::size_t>(r * y_ld + 1 + c)] =
              present ? x[static_cast<std::size_t>(row * x_ld + 3 + c)] : 0.0;
        }
      take_rows(stream(), y.columns(1, 1 + columns), from.columns(3, 3 + columns), ints(index));
      EXPECT_EQ(values_of(y), expected) << dtype_name(dtype) << " " << columns;
    }
}

TEST(TakeRowsKernel, APermutationsInverseTakesRowsBack) {
  for (const Dtype dtype : kDtypes)
    for (const std::int64_t rows : kAwkwardSizes) {
      Ints order(static_cast<std::size_t>(rows)), inverse(order.size());
      std::iota(order.begin(), order.end(), 0);
      std::mt19937 generator(static_cast<unsigned>(rows));
      std::shuffle(order.begin(), order.end(), generator);
      for (std::size_t r = 0; r < order.size(); ++r) inverse[static_cast<std::size_t>(order[r])] = static_cast<std::int32_t>(r);
      const Tensor x = tensor_of(numbers(rows * 3), {rows, 3}, dtype),
                   there = tensor_of(Values(x.numel(), 0.0), {rows, 3}, dtype),
                   back = tensor_of(Values(x.numel(), 0.0), {rows, 3}, dtype);
      take_rows(stream(), there, x, ints(order));
      take_rows(stream(), back, there, ints(inverse));
      EXPECT_EQ(bits_of(back), bits_of(x)) << rows;
      if (rows > 3) {
        EXPECT_NE(bits_of(there), bits_of(x)) << rows;
      }
    }
}

TEST(TakeRowsKernel, CopiesBitsAlsoOfNanAndOfMinusZero) {
  for (const Dtype dtype : kFloatDtypes) {
    const Tensor x = device_tensor({std::nan(""), -0.0, HUGE_VAL, -std::nan(""), 1e-40, -HUGE_VAL}, {2, 3}, dtype),
                 y = device_tensor(Values(6, 1.0), {2, 3}, dtype);
    take_rows(stream(), y, x, ints({0, 1}));
    EXPECT_EQ(bits_of(y), bits_of(x)) << dtype_name(dtype);
    take_rows(stream(), y, x, ints({-1, 2}));
    EXPECT_EQ(bits_of(y), bits_of(device_tensor(Values(6, 0.0), {2, 3}, dtype))) << dtype_name(dtype);
  }
}

TEST(TakeRowsKernel, RepeatsBitwise) {
  Ints index(301);
  for (std::size_t i = 0; i < index.size(); ++i) index[i] = static_cast<std::int32_t>(i * 7 % 150) - 1;
  const Values x = random_values(150 * 33, 1);
  expect_repeatable([&] {
    const Tensor y = poisoned({301, 33}, Dtype::kBf16);
    take_rows(stream(), y, device_tensor(x, {150, 33}, Dtype::kBf16), ints(index));
    return y;
  });
}

TEST(TakeRowsKernel, TakesNoRowsAndFromNone) {
  const Tensor none = poisoned({0, 3}, Dtype::kFp32), y = poisoned({2, 3}, Dtype::kFp32);
  take_rows(stream(), none, y, ints({}));
  take_rows(stream(), none, none, ints({}));
  take_rows(stream(), y, none, ints({0, -1}));
  EXPECT_EQ(values_of(y), Values(6, 0.0));
  take_rows(stream(), poisoned({2, 0}, Dtype::kFp32), poisoned({4, 0}, Dtype::kFp32), ints({0, 1}));
}

TEST(TakeRowsKernel, WrongShapesAndDtypesAreRefused) {
  const Tensor x = poisoned({4, 3}, Dtype::kFp32), y = poisoned({2, 3}, Dtype::kFp32), index = ints({0, 1});
  EXPECT_NO_THROW(take_rows(stream(), y, x, index));
  for (const Tensor& wrong : {poisoned({3, 3}, Dtype::kFp32), poisoned({2, 4}, Dtype::kFp32), poisoned({2, 3}, Dtype::kFp64),
                              poisoned({2, 3}, Dtype::kBf16), device_ints(Ints(6, 0), {2, 3})})
    EXPECT_THROW(take_rows(stream(), wrong, x, index), std::logic_error);
  for (const Tensor& wrong : {ints({0, 1, 2}), device_ints({0, 1}, {2, 1}), poisoned({2}, Dtype::kFp32)})
    EXPECT_THROW(take_rows(stream(), y, x, wrong), std::logic_error);
}

}  // namespace
}  // namespace ref5d::of_take_rows
