#include "common/kernels/swiglu.h"
#include "tests/support/kernel_repeat.h"

namespace ref5d::testing {
namespace {

using Values = std::vector<double>;

double silu(double g) { return g / (1 + std::exp(-g)); }

Values reference_forward(const Values& gate, const Values& up) {
  Values y(gate.size());
  for (std::size_t i = 0; i < y.size(); ++i) y[i] = silu(gate[i]) * up[i];
  return y;
}

struct Gradients {
  Values gate, up;
};
Gradients reference_backward(const Values& dy, const Values& gate, const Values& up) {
  Gradients d{Values(dy.size()), Values(dy.size())};
  for (std::size_t i = 0; i < dy.size(); ++i) {
    const double s = 1 / (1 + std::exp(-gate[i]));
    d.gate[i] = dy[i] * up[i] * s * (1 + gate[i] * (1 - s));
    d.up[i] = dy[i] * gate[i] * s;
  }
  return d;
}

TEST(SwigluKernel, ForwardAndBackwardMatchTheFormulaInEveryDtype) {
  for (const Dtype dtype : kFloatDtypes) {
    for (const std::int64_t columns : kAwkwardSizes) {
      const std::int64_t rows = 5;
      const Shape shape{rows, columns};
      const Values gate = rounded(random_values(rows * columns, 1, 3), dtype),
                   up = rounded(random_values(rows * columns, 2), dtype), dy = rounded(random_values(rows * columns, 3), dtype);
      const Tensor g = device_tensor(gate, shape, dtype), u = device_tensor(up, shape, dtype), y = poisoned(shape, dtype);
      swiglu_forward(stream(), y, g, u);
      EXPECT_LT(relative_error(values_of(y), reference_forward(gate, up)), tolerance(dtype)) << columns;
      const Tensor dgate = poisoned(shape, dtype), dup = poisoned(shape, dtype);
      swiglu_backward(stream(), dgate, dup, device_tensor(dy, shape, dtype), g, u);
      const Gradients expected = reference_backward(dy, gate, up);
      EXPECT_LT(relative_error(values_of(dgate), expected.gate), tolerance(dtype)) << columns;
      EXPECT_LT(relative_error(values_of(dup), expected.up), tolerance(dtype)) << columns;
      EXPECT_EQ(values_of(g), gate) << "the input changed";
    }
  }
}

TEST(SwigluKernel, BackwardIsTheGradientOfForward) {
  const std::int64_t n = 33;
  const Values gate = random_values(n, 4, 2), up = random_values(n, 5), dy = random_values(n, 6);
  auto forward = [&](const Values& g, const Values& u) {
    const Tensor y = poisoned({1, n}, Dtype::kFp64);
    swiglu_forward(stream(), y, device_tensor(g, {1, n}, Dtype::kFp64), device_tensor(u, {1, n}, Dtype::kFp64));
    return values_of(y);
  };
  const Tensor dgate = poisoned({1, n}, Dtype::kFp64), dup = poisoned({1, n}, Dtype::kFp64);
  swiglu_backward(stream(), dgate, dup, device_tensor(dy, {1, n}, Dtype::kFp64), device_tensor(gate, {1, n}, Dtype::kFp64),
                  device_tensor(up, {1, n}, Dtype::kFp64));
  EXPECT_LT(relative_error(values_of(dgate), finite_difference([&](const Values& g) { return forward(g, up); }, gate, dy)),
            1e-7);
  EXPECT_LT(relative_error(values_of(dup), finite_difference([&](const Values& u) { return forward(gate, u); }, up, dy)), 1e-7);
}

TEST(SwigluKernel, BackwardInPlaceOfGateAndUp) {
  const Shape shape{3, kSeveralBlocks / 3};
  const std::int64_t n = product(shape);
  for (const Dtype dtype : kFloatDtypes) {
    const Tensor g = device_tensor(random_values(n, 7), shape, dtype), u = device_tensor(random_values(n, 8), shape, dtype),
                 dy = device_tensor(random_values(n, 9), shape, dtype);
    const Tensor dgate = poisoned(shape, dtype), dup = poisoned(shape, dtype);
    swiglu_backward(stream(), dgate, dup, dy, g, u);
    swiglu_backward(stream(), g, u, dy, g, u);
    EXPECT_EQ(bits_of(g), bits_of(dgate));
    EXPECT_EQ(bits_of(u), bits_of(dup));
  }
}

TEST(SwigluKernel, UnfusedIsTheSameInTwoSteps) {
  for (const Dtype dtype : kFloatDtypes) {
    const Shape shape{7, 129};
    const Values gate = rounded(random_values(7 * 129, 10), dtype), up = rounded(random_values(7 * 129, 11), dtype);
    const Tensor y = poisoned(shape, dtype), scratch = poisoned(shape, dtype);
    swiglu_forward_unfused(stream(), y, scratch, device_tensor(gate, shape, dtype), device_tensor(up, shape, dtype));
    EXPECT_LT(relative_error(values_of(y), reference_forward(gate, up)), 2 * tolerance(dtype));
    Values activated(gate.size());
    for (std::size_t i = 0; i < gate.size(); ++i) activated[i] = silu(gate[i]);
    EXPECT_LT(relative_error(values_of(scratch), activated), tolerance(dtype));
  }
}

TEST(SwigluKernel, LargeGatesSaturate) {
  const Values gate{-1e4, -200, -100, 100, 200, 1e4};
  for (const Dtype dtype : kFloatDtypes) {
    const Tensor g = device_tensor(gate, {1, 6}, dtype), ones = device_tensor(Values(6, 1.0), {1, 6}, dtype);
    const Tensor y = poisoned({1, 6}, dtype), dgate = poisoned({1, 6}, dtype), dup = poisoned({1, 6}, dtype);
    swiglu_forward(stream(), y, g, ones);
    swiglu_backward(stream(), dgate, dup, ones, g, ones);
    const Values at = rounded(gate, dtype), vy = values_of(y), vgate = values_of(dgate), vup = values_of(dup);
    for (std::size_t i = 0; i < 6; ++i) {
      EXPECT_NEAR(vy[i], i < 3 ? 0 : at[i], 1e-30);
      EXPECT_NEAR(vgate[i], i < 3 ? 0 : 1, 1e-30);
      EXPECT_NEAR(vup[i], i < 3 ? 0 : at[i], 1e-30);
    }
  }
}

TEST(SwigluKernel, RepeatsBitwiseAndTakesNoRows) {
  expect_repeatable([] {
    const Shape shape{1, kSeveralBlocks};
    const Tensor y = poisoned(shape, Dtype::kFp32);
    swiglu_forward(stream(), y, device_tensor(random_values(kSeveralBlocks, 12), shape, Dtype::kFp32),
                   device_tensor(random_values(kSeveralBlocks, 13), shape, Dtype::kFp32));
    return y;
  });
  const Tensor none = poisoned({0, 8}, Dtype::kFp32);
  swiglu_forward(stream(), none, none, none);
  swiglu_backward(stream(), none, none, none, none, none);
  EXPECT_TRUE(values_of(none).empty());
}

TEST(SwigluKernel, WrongShapesAndDtypesAreRefused) {
  const Tensor a = poisoned({2, 3}, Dtype::kFp32), other_shape = poisoned({3, 2}, Dtype::kFp32),
               other_dtype = poisoned({2, 3}, Dtype::kBf16), wide = poisoned({2, 6}, Dtype::kFp32);
  EXPECT_THROW(swiglu_forward(stream(), a, a, other_shape), std::logic_error);
  EXPECT_THROW(swiglu_forward(stream(), other_dtype, a, a), std::logic_error);
  EXPECT_THROW(swiglu_forward(stream(), a, wide.columns(0, 3), a), std::logic_error);
  EXPECT_THROW(swiglu_backward(stream(), a, a, other_shape, a, a), std::logic_error);
}

}  // namespace
}  // namespace ref5d::testing
