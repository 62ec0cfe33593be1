#include <numbers>

#include "common/kernels/gelu.h"
#include "tests/support/kernel_repeat.h"

namespace ref5d::testing {
namespace {

using Values = std::vector<double>;

// The published form, with tanh.
double gelu(double x) {
  const double u = std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x);
  return x / 2 * (1 + std::tanh(u));
}
double gelu_slope(double x) {
  const double t = std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x));
  return (1 + t) / 2 + x / 2 * (1 - t * t) * std::sqrt(2 / std::numbers::pi) * (1 + 3 * 0.044715 * x * x);
}

Values mapped(double (*f)(double), const Values& x) {
  Values y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) y[i] = f(x[i]);
  return y;
}
Values times(Values a, const Values& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] *= b[i];
  return a;
}

TEST(GeluKernel, ForwardAndBackwardMatchTheTanhFormInEveryDtype) {
  for (const Dtype dtype : kFloatDtypes) {
    for (const std::int64_t columns : kAwkwardSizes) {
      const Shape shape{3, columns};
      const Values x = rounded(random_values(3 * columns, 1, 2), dtype), dy = rounded(random_values(3 * columns, 2), dtype);
      const Tensor tx = device_tensor(x, shape, dtype), y = poisoned(shape, dtype), dx = poisoned(shape, dtype);
      gelu_forward(stream(), y, tx);
      gelu_backward(stream(), dx, device_tensor(dy, shape, dtype), tx);
      EXPECT_LT(relative_error(values_of(y), mapped(gelu, x)), tolerance(dtype)) << columns;
      EXPECT_LT(relative_error(values_of(dx), times(mapped(gelu_slope, x), dy)), tolerance(dtype)) << columns;
      EXPECT_EQ(values_of(tx), x) << "the input changed";
    }
  }
}

TEST(GeluKernel, KnownValues) {  // PyTorch: gelu(x, approximate="tanh")
  const Tensor x = device_tensor({-1, 0, 0.5, 1, 2}, {1, 5}, Dtype::kFp64), y = poisoned({1, 5}, Dtype::kFp64);
  gelu_forward(stream(), y, x);
  const Values v = values_of(y), expected{-0.15880801, 0, 0.34571401, 0.84119199, 1.95459769};
  for (std::size_t i = 0; i < 5; ++i) EXPECT_NEAR(v[i], expected[i], 1e-8);
}

TEST(GeluKernel, BackwardIsTheGradientOfForward) {
  const std::int64_t n = 65;
  const Values x = random_values(n, 3, 2), dy = random_values(n, 4);
  auto forward = [&](const Values& at) {
    const Tensor y = poisoned({1, n}, Dtype::kFp64);
    gelu_forward(stream(), y, device_tensor(at, {1, n}, Dtype::kFp64));
    return values_of(y);
  };
  const Tensor dx = poisoned({1, n}, Dtype::kFp64);
  gelu_backward(stream(), dx, device_tensor(dy, {1, n}, Dtype::kFp64), device_tensor(x, {1, n}, Dtype::kFp64));
  EXPECT_LT(relative_error(values_of(dx), finite_difference(forward, x, dy)), 1e-7);
}

TEST(GeluKernel, BackwardInPlaceOfDy) {
  const Shape shape{1, kSeveralBlocks};
  for (const Dtype dtype : kFloatDtypes) {
    const Tensor x = device_tensor(random_values(kSeveralBlocks, 5), shape, dtype),
                 dy = device_tensor(random_values(kSeveralBlocks, 6), shape, dtype), dx = poisoned(shape, dtype);
    gelu_backward(stream(), dx, dy, x);
    gelu_backward(stream(), dy, dy, x);
    EXPECT_EQ(bits_of(dx), bits_of(dy));
  }
}

TEST(GeluKernel, LargeInputsSaturate) {
  const Values x{-1e4, -100, -20, 20, 100, 1e4};
  for (const Dtype dtype : kFloatDtypes) {
    const Tensor tx = device_tensor(x, {1, 6}, dtype), ones = device_tensor(Values(6, 1.0), {1, 6}, dtype);
    const Tensor y = poisoned({1, 6}, dtype), dx = poisoned({1, 6}, dtype);
    gelu_forward(stream(), y, tx);
    gelu_backward(stream(), dx, ones, tx);
    const Values at = rounded(x, dtype), vy = values_of(y), vdx = values_of(dx);
    for (std::size_t i = 0; i < 6; ++i) {
      EXPECT_NEAR(vy[i], i < 3 ? 0 : at[i], 1e-30);
      EXPECT_NEAR(vdx[i], i < 3 ? 0 : 1, 1e-30);
    }
  }
}

TEST(GeluKernel, RepeatsBitwiseAndTakesNoRows) {
  expect_repeatable([] {
    const Shape shape{1, kSeveralBlocks};
    const Tensor y = poisoned(shape, Dtype::kBf16);
    gelu_forward(stream(), y, device_tensor(random_values(kSeveralBlocks, 7), shape, Dtype::kBf16));
    return y;
  });
  const Tensor none = poisoned({0, 8}, Dtype::kFp32);
  gelu_forward(stream(), none, none);
  gelu_backward(stream(), none, none, none);
  EXPECT_TRUE(values_of(none).empty());
}

TEST(GeluKernel, WrongShapesAndDtypesAreRefused) {
  const Tensor a = poisoned({2, 3}, Dtype::kFp32), other_shape = poisoned({3, 2}, Dtype::kFp32),
               other_dtype = poisoned({2, 3}, Dtype::kBf16);
  EXPECT_THROW(gelu_forward(stream(), a, other_shape), std::logic_error);
  EXPECT_THROW(gelu_forward(stream(), other_dtype, a), std::logic_error);
  EXPECT_THROW(gelu_backward(stream(), a, other_shape, a), std::logic_error);
}

}  // namespace
}  // namespace ref5d::testing
