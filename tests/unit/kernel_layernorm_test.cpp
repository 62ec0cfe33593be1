#include <gtest/gtest.h>

#include "common/kernels/layernorm.h"
#include "tests/support/kernel_repeat.h"
#include "tests/support/norm_testing.h"

namespace ref5d::of_layernorm {
namespace {

using testing::device_tensor;
using testing::gradient_target;
using testing::plus_one;
using testing::poisoned;
using testing::random_values;
using testing::relative_error;
using testing::rounded;
using testing::values_of;

constexpr double kEps = testing::kNormEps;

struct Norm {
  std::vector<double> y, mean, rstd;
};
Norm reference(const std::vector<double>& x, const std::vector<double>& w, const std::vector<double>& b) {
  const std::size_t columns = w.size(), rows = x.size() / columns;
  Norm n{std::vector<double>(x.size()), std::vector<double>(rows), std::vector<double>(rows)};
  for (std::size_t r = 0; r < rows; ++r) {
    double sum = 0, squares = 0;
    for (std::size_t c = 0; c < columns; ++c) sum += x[r * columns + c];
    n.mean[r] = sum / static_cast<double>(columns);
    for (std::size_t c = 0; c < columns; ++c) squares += std::pow(x[r * columns + c] - n.mean[r], 2);
    n.rstd[r] = 1 / std::sqrt(squares / static_cast<double>(columns) + kEps);
    for (std::size_t c = 0; c < columns; ++c) n.y[r * columns + c] = (x[r * columns + c] - n.mean[r]) * n.rstd[r] * w[c] + b[c];
  }
  return n;
}

struct Gradients {
  std::vector<double> dx, dw, db;
};
Gradients reference_backward(const std::vector<double>& dy, const std::vector<double>& x, const std::vector<double>& w) {
  const std::size_t columns = w.size(), rows = x.size() / columns;
  const Norm n = reference(x, w, std::vector<double>(columns));
  Gradients g{std::vector<double>(x.size()), std::vector<double>(columns), std::vector<double>(columns)};
  for (std::size_t r = 0; r < rows; ++r) {
    double mean_g = 0, mean_g_xhat = 0;
    for (std::size_t c = 0; c < columns; ++c) {
      const double d = dy[r * columns + c], xhat = (x[r * columns + c] - n.mean[r]) * n.rstd[r];
      g.dw[c] += d * xhat;
      g.db[c] += d;
      mean_g += d * w[c] / static_cast<double>(columns);
      mean_g_xhat += d * w[c] * xhat / static_cast<double>(columns);
    }
    for (std::size_t c = 0; c < columns; ++c) {
      const double xhat = (x[r * columns + c] - n.mean[r]) * n.rstd[r];
      g.dx[r * columns + c] = n.rstd[r] * (dy[r * columns + c] * w[c] - mean_g - xhat * mean_g_xhat);
    }
  }
  return g;
}

struct Inputs : testing::NormInputs {
  std::vector<double> b;
  Tensor b_device;
  Inputs(std::int64_t rows_, std::int64_t columns_, Dtype dtype_)
      : NormInputs(rows_, columns_, dtype_),
        b(rounded(random_values(columns, 6), dtype)),
        b_device(device_tensor(b, {columns}, dtype)) {}
};

struct Outputs {
  Tensor y, mean, rstd, dx, dw, db;
};
Outputs run(const Inputs& in, bool accumulate_dx = false, bool accumulate_dw = false, bool accumulate_db = false,
            bool wide_dw = false) {
  Stream& stream = device().compute();
  const Dtype accumulator = accumulator_of(in.dtype);
  Outputs out{poisoned({in.rows, in.columns}, in.dtype),
              poisoned({in.rows}, accumulator),
              poisoned({in.rows}, accumulator),
              {},
              {},
              {}};
  out.dx = gradient_target({in.rows, in.columns}, in.dtype, accumulate_dx);
  out.dw = gradient_target({in.columns}, wide_dw ? accumulator : in.dtype, accumulate_dw);
  out.db = gradient_target({in.columns}, wide_dw ? accumulator : in.dtype, accumulate_db);
  layernorm_forward(stream, out.y, out.mean, out.rstd, in.x_device, in.w_device, in.b_device, kEps);
  layernorm_backward(stream, out.dx, out.dw, out.db, in.dy_device, in.x_device, out.mean, out.rstd, in.w_device, accumulate_dx,
                     accumulate_dw, accumulate_db);
  return out;
}

TEST(LayerNorm, MatchesTheReferenceOverAwkwardSizes) {
  for (Dtype dtype : testing::kFloatDtypes) {
    for (std::int64_t columns : testing::kAwkwardSizes) {
      for (std::int64_t rows : {1, 3, 65}) {
        const Inputs in(rows, columns, dtype);
        const Outputs out = run(in);
        const Norm norm = reference(in.x, in.w, in.b);
        const Gradients gradients = reference_backward(in.dy, in.x, in.w);
        const double allowed = testing::tolerance(dtype), in_sums = testing::tolerance(accumulator_of(dtype));
        EXPECT_LE(relative_error(values_of(out.y), norm.y), allowed) << in.text();
        EXPECT_LE(relative_error(values_of(out.rstd), norm.rstd), in_sums) << in.text();
        EXPECT_LE(relative_error(values_of(out.mean), norm.mean), 3 * in_sums) << in.text();
        EXPECT_LE(relative_error(values_of(out.dw), gradients.dw), allowed) << in.text();
        EXPECT_LE(relative_error(values_of(out.db), gradients.db), allowed) << in.text();
        testing::expect_dx(in, out.dx, gradients.dx, norm.rstd);
      }
    }
  }
}

TEST(LayerNorm, BackwardMatchesFiniteDifferences) {
  const Inputs in(5, 9, Dtype::kFp64);
  const Outputs out = run(in);
  const auto forward = [&](const std::vector<double>& x, const std::vector<double>& w, const std::vector<double>& b) {
    constexpr Dtype kFp64 = Dtype::kFp64;
    const Tensor y = poisoned({5, 9}, kFp64), mean = poisoned({5}, kFp64), rstd = poisoned({5}, kFp64);
    layernorm_forward(device().compute(), y, mean, rstd, device_tensor(x, {5, 9}, kFp64), device_tensor(w, {9}, kFp64),
                      device_tensor(b, {9}, kFp64), kEps);
    return values_of(y);
  };
  using Values = std::vector<double>;
  const auto dx = testing::finite_difference([&](const Values& x) { return forward(x, in.w, in.b); }, in.x, in.dy);
  const auto dw = testing::finite_difference([&](const Values& w) { return forward(in.x, w, in.b); }, in.w, in.dy);
  const auto db = testing::finite_difference([&](const Values& b) { return forward(in.x, in.w, b); }, in.b, in.dy);
  EXPECT_LT(relative_error(values_of(out.dx), dx), 1e-7);
  EXPECT_LT(relative_error(values_of(out.dw), dw), 1e-7);
  EXPECT_LT(relative_error(values_of(out.db), db), 1e-7);
}

TEST(LayerNorm, AddsToGradientsWhenAsked) {
  for (Dtype dtype : testing::kFloatDtypes) {
    const Inputs in(33, 65, dtype);
    const Gradients expected = reference_backward(in.dy, in.x, in.w);
    const double allowed = testing::tolerance(dtype);
    const Outputs added = run(in, true);
    EXPECT_LE(relative_error(values_of(added.dx), plus_one(expected.dx)), allowed) << in.text();
    EXPECT_LE(relative_error(values_of(added.dw), expected.dw), allowed) << in.text();
    EXPECT_LE(relative_error(values_of(added.db), expected.db), allowed) << in.text();
    // dw and db in the accumulator's dtype keep the accumulator's precision.
    for (bool wide : {false, true}) {
      const double of_dw = wide ? 2 * testing::tolerance(accumulator_of(dtype)) : allowed;
      for (const auto& [dw, db] : {std::pair{true, true}, {true, false}, {false, true}}) {
        const Outputs to_weights = run(in, false, dw, db, wide);
        EXPECT_LE(relative_error(values_of(to_weights.dx), expected.dx), allowed) << in.text();
        EXPECT_LE(relative_error(values_of(to_weights.dw), dw ? plus_one(expected.dw) : expected.dw), of_dw) << in.text();
        EXPECT_LE(relative_error(values_of(to_weights.db), db ? plus_one(expected.db) : expected.db), of_dw) << in.text();
      }
    }
  }
}

// A mean far from zero: a variance from mean(x^2) - mean(x)^2 would have lost every digit.
TEST(LayerNorm, ALargeMeanCostsNoPrecision) {
  Inputs in(4, 64, Dtype::kFp32);
  for (double& x : in.x) x = std::round(x * 64) / 64 + 4096;  // exact in fp32
  in.x_device = device_tensor(in.x, {4, 64}, Dtype::kFp32);
  const Outputs out = run(in);
  const Norm norm = reference(in.x, in.w, in.b);
  EXPECT_LE(relative_error(values_of(out.rstd), norm.rstd), 1e-4);
  EXPECT_LE(relative_error(values_of(out.y), norm.y), 1e-3);
}

TEST(LayerNorm, WithoutRowsTheWeightGradientsAreZero) {
  for (Dtype dtype : testing::kFloatDtypes) {
    const Inputs in(0, 7, dtype);
    EXPECT_EQ(values_of(run(in).dw), std::vector<double>(7, 0.0));
    EXPECT_EQ(values_of(run(in).db), std::vector<double>(7, 0.0));
    EXPECT_EQ(values_of(run(in, true, true, true).db), std::vector<double>(7, 1.0));
  }
}

TEST(LayerNorm, AConstantRowGivesTheBias) {
  Inputs in(2, 4, Dtype::kFp32);
  in.x_device = device_tensor(std::vector<double>(8, 3.0), {2, 4}, Dtype::kFp32);
  const Outputs out = run(in);
  std::vector<double> expected = in.b;
  expected.insert(expected.end(), in.b.begin(), in.b.end());
  EXPECT_EQ(values_of(out.y), expected);
  for (double v : values_of(out.dx)) EXPECT_TRUE(std::isfinite(v));
}

TEST(LayerNorm, TwoRunsAndTwoThreadsAgreeBitwise) {
  const int threads = device().threads();
  for (Dtype dtype : testing::kFloatDtypes) {
    const Inputs in(131, 129, dtype);
    const auto all = [&](int t) {
      device().set_threads(t);
      const Outputs out = run(in);
      std::vector<std::vector<std::byte>> bytes;
      for (const Tensor* tensor : {&out.y, &out.mean, &out.rstd, &out.dx, &out.dw, &out.db})
        bytes.push_back(testing::bits_of(*tensor));
      return bytes;
    };
    const auto first = all(1);
    EXPECT_EQ(first, all(1)) << in.text();
    EXPECT_EQ(first, all(2)) << in.text();
  }
  device().set_threads(threads);
}

TEST(LayerNorm, RefusesShapesThatDoNotFit) {
  Stream& stream = device().compute();
  const Inputs in(3, 4, Dtype::kFp32);
  const Outputs out = run(in);
  const Tensor short_w = poisoned({3}, Dtype::kFp32), narrow = poisoned({3, 3}, Dtype::kFp32);
  const auto forward = [&](const Tensor& y, const Tensor& mean, const Tensor& w, const Tensor& b) {
    layernorm_forward(stream, y, mean, out.rstd, in.x_device, w, b, kEps);
  };
  EXPECT_NO_THROW(forward(out.y, out.mean, in.w_device, in.b_device));
  EXPECT_THROW(forward(narrow, out.mean, in.w_device, in.b_device), std::logic_error);
  EXPECT_THROW(forward(out.y, poisoned({3}, Dtype::kFp64), in.w_device, in.b_device), std::logic_error);
  EXPECT_THROW(forward(out.y, out.mean, short_w, in.b_device), std::logic_error);
  EXPECT_THROW(forward(out.y, out.mean, in.w_device, short_w), std::logic_error);
  const auto backward = [&](const Tensor& dx, const Tensor& dw, const Tensor& db, const Tensor& dy, const Tensor& w) {
    layernorm_backward(stream, dx, dw, db, dy, in.x_device, out.mean, out.rstd, w, false, false, false);
  };
  EXPECT_NO_THROW(backward(out.dx, out.dw, out.db, in.dy_device, in.w_device));
  EXPECT_THROW(backward(narrow, out.dw, out.db, in.dy_device, in.w_device), std::logic_error);
  EXPECT_THROW(backward(out.dx, short_w, out.db, in.dy_device, in.w_device), std::logic_error);
  EXPECT_THROW(backward(out.dx, out.dw, short_w, in.dy_device, in.w_device), std::logic_error);
  EXPECT_THROW(backward(out.dx, out.dw, out.db, narrow, in.w_device), std::logic_error);
  EXPECT_THROW(backward(out.dx, out.dw, out.db, in.dy_device, short_w), std::logic_error);
  // Rows that do not follow one another.
  const Tensor apart = poisoned({3, 6}, Dtype::kFp32).columns(0, 4);
  EXPECT_THROW(layernorm_forward(stream, out.y, out.mean, out.rstd, apart, in.w_device, in.b_device, kEps), std::logic_error);
  EXPECT_THROW(forward(apart, out.mean, in.w_device, in.b_device), std::logic_error);
  EXPECT_THROW(backward(apart, out.dw, out.db, in.dy_device, in.w_device), std::logic_error);
  EXPECT_THROW(backward(out.dx, out.dw, out.db, apart, in.w_device), std::logic_error);
}

}  // namespace
}  // namespace ref5d::of_layernorm
