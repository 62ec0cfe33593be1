#include <gtest/gtest.h>

#include "common/kernels/rmsnorm.h"
#include "common/kernels/row_sums.h"
#include "tests/support/kernel_repeat.h"
#include "tests/support/norm_testing.h"

namespace ref5d::of_rmsnorm {
namespace {

using Inputs = testing::NormInputs;
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
  std::vector<double> y, rstd;
};
Norm reference(const std::vector<double>& x, const std::vector<double>& w) {
  const std::size_t columns = w.size(), rows = x.size() / columns;
  Norm n{std::vector<double>(x.size()), std::vector<double>(rows)};
  for (std::size_t r = 0; r < rows; ++r) {
    double sum = 0;
    for (std::size_t c = 0; c < columns; ++c) sum += x[r * columns + c] * x[r * columns + c];
    n.rstd[r] = 1 / std::sqrt(sum / static_cast<double>(columns) + kEps);
    for (std::size_t c = 0; c < columns; ++c) n.y[r * columns + c] = x[r * columns + c] * n.rstd[r] * w[c];
  }
  return n;
}

struct Gradients {
  std::vector<double> dx, dw;
};
Gradients reference_backward(const std::vector<double>& dy, const std::vector<double>& x, const std::vector<double>& w) {
  const std::size_t columns = w.size(), rows = x.size() / columns;
  const Norm n = reference(x, w);
  Gradients g{std::vector<double>(x.size()), std::vector<double>(columns)};
  for (std::size_t r = 0; r < rows; ++r) {
    double mean = 0;
    for (std::size_t c = 0; c < columns; ++c) {
      const double xhat = x[r * columns + c] * n.rstd[r];
      g.dw[c] += dy[r * columns + c] * xhat;
      mean += dy[r * columns + c] * w[c] * xhat / static_cast<double>(columns);
    }
    for (std::size_t c = 0; c < columns; ++c) {
      const double xhat = x[r * columns + c] * n.rstd[r];
      g.dx[r * columns + c] = n.rstd[r] * (dy[r * columns + c] * w[c] - xhat * mean);
    }
  }
  return g;
}

struct Outputs {
  Tensor y, rstd, dx, dw;
};
Outputs run(const Inputs& in, bool accumulate_dx = false, bool accumulate_dw = false, bool wide_dw = false) {
  Stream& stream = device().compute();
  const Dtype accumulator = accumulator_of(in.dtype);
  Outputs out{poisoned({in.rows, in.columns}, in.dtype), poisoned({in.rows}, accumulator), {}, {}};
  out.dx = gradient_target({in.rows, in.columns}, in.dtype, accumulate_dx);
  out.dw = gradient_target({in.columns}, wide_dw ? accumulator : in.dtype, accumulate_dw);
  rmsnorm_forward(stream, out.y, out.rstd, in.x_device, in.w_device, kEps);
  rmsnorm_backward(stream, out.dx, out.dw, in.dy_device, in.x_device, out.rstd, in.w_device, accumulate_dx, accumulate_dw);
  return out;
}

TEST(RmsNorm, MatchesTheReferenceOverAwkwardSizes) {
  for (Dtype dtype : testing::kFloatDtypes) {
    for (std::int64_t columns : testing::kAwkwardSizes) {
      for (std::int64_t rows : {1, 3, 65}) {
        const Inputs in(rows, columns, dtype);
        const Outputs out = run(in);
        const Norm norm = reference(in.x, in.w);
        const Gradients gradients = reference_backward(in.dy, in.x, in.w);
        const double allowed = testing::tolerance(dtype), in_sums = testing::tolerance(accumulator_of(dtype));
        EXPECT_LE(relative_error(values_of(out.y), norm.y), allowed) << in.text();
        EXPECT_LE(relative_error(values_of(out.rstd), norm.rstd), in_sums) << in.text();
        EXPECT_LE(relative_error(values_of(out.dw), gradients.dw), allowed) << in.text();
        testing::expect_dx(in, out.dx, gradients.dx, norm.rstd);
      }
    }
  }
}

TEST(RmsNorm, BackwardMatchesFiniteDifferences) {
  const Inputs in(5, 9, Dtype::kFp64);
  const Outputs out = run(in);
  const auto forward = [&](const std::vector<double>& x, const std::vector<double>& w) {
    const Tensor y = poisoned({in.rows, in.columns}, Dtype::kFp64), rstd = poisoned({in.rows}, Dtype::kFp64);
    rmsnorm_forward(device().compute(), y, rstd, device_tensor(x, {in.rows, in.columns}, Dtype::kFp64),
                    device_tensor(w, {in.columns}, Dtype::kFp64), kEps);
    return values_of(y);
  };
  const auto dx = testing::finite_difference([&](const std::vector<double>& x) { return forward(x, in.w); }, in.x, in.dy);
  const auto dw = testing::finite_difference([&](const std::vector<double>& w) { return forward(in.x, w); }, in.w, in.dy);
  EXPECT_LT(relative_error(values_of(out.dx), dx), 1e-7);
  EXPECT_LT(relative_error(values_of(out.dw), dw), 1e-7);
}

TEST(RmsNorm, AddsToGradientsWhenAsked) {
  for (Dtype dtype : testing::kFloatDtypes) {
    const Inputs in(33, 65, dtype);
    const Gradients expected = reference_backward(in.dy, in.x, in.w);
    const double allowed = testing::tolerance(dtype);
    const Outputs added = run(in, true, false);
    EXPECT_LE(relative_error(values_of(added.dx), plus_one(expected.dx)), allowed) << in.text();
    EXPECT_LE(relative_error(values_of(added.dw), expected.dw), allowed) << in.text();
    const Outputs added_dw = run(in, false, true);
    EXPECT_LE(relative_error(values_of(added_dw.dx), expected.dx), allowed) << in.text();
    EXPECT_LE(relative_error(values_of(added_dw.dw), plus_one(expected.dw)), allowed) << in.text();
    // dw in the accumulator's dtype keeps the accumulator's precision.
    const double in_sums = 2 * testing::tolerance(accumulator_of(dtype));
    EXPECT_LE(relative_error(values_of(run(in, false, false, true).dw), expected.dw), in_sums) << in.text();
    EXPECT_LE(relative_error(values_of(run(in, false, true, true).dw), plus_one(expected.dw)), in_sums) << in.text();
  }
}

TEST(RmsNorm, WithoutRowsTheWeightGradientIsZero) {
  for (Dtype dtype : testing::kFloatDtypes) {
    const Inputs in(0, 7, dtype);
    EXPECT_EQ(values_of(run(in).dw), std::vector<double>(7, 0.0));
    EXPECT_EQ(values_of(run(in, true, true).dw), std::vector<double>(7, 1.0));
  }
}

TEST(RmsNorm, AZeroRowGivesZerosAndNotNan) {
  Inputs in(2, 4, Dtype::kFp32);
  in.x_device = Tensor::zeros({2, 4}, Dtype::kFp32, MemoryCategory::kWorkspace, device().compute());
  const Outputs out = run(in);
  EXPECT_EQ(values_of(out.y), std::vector<double>(8, 0.0));
  EXPECT_NEAR(values_of(out.rstd)[0], 1 / std::sqrt(kEps), 1e-3);
  for (double v : values_of(out.dx)) EXPECT_TRUE(std::isfinite(v));
}

TEST(RmsNorm, TwoRunsAndTwoThreadsAgreeBitwise) {
  const int threads = device().threads();
  for (Dtype dtype : testing::kFloatDtypes) {
    const Inputs in(131, 129, dtype);
    const auto all = [&](int t) {
      device().set_threads(t);
      const Outputs out = run(in);
      std::vector<std::vector<std::byte>> bytes;
      for (const Tensor* tensor : {&out.y, &out.rstd, &out.dx, &out.dw}) bytes.push_back(testing::bits_of(*tensor));
      return bytes;
    };
    const auto first = all(1);
    EXPECT_EQ(first, all(1)) << in.text();
    EXPECT_EQ(first, all(2)) << in.text();
  }
  device().set_threads(threads);
}

TEST(RmsNorm, RefusesShapesThatDoNotFit) {
  Stream& stream = device().compute();
  const Inputs in(3, 4, Dtype::kFp32);
  const Outputs out = run(in);
  const Tensor short_w = poisoned({3}, Dtype::kFp32), narrow = poisoned({3, 3}, Dtype::kFp32);
  EXPECT_THROW(rmsnorm_forward(stream, out.y, out.rstd, in.x_device, short_w, kEps), std::logic_error);
  EXPECT_THROW(rmsnorm_forward(stream, narrow, out.rstd, in.x_device, in.w_device, kEps), std::logic_error);
  const auto backward = [&](const Tensor& dx, const Tensor& dw, const Tensor& dy, const Tensor& w) {
    rmsnorm_backward(stream, dx, dw, dy, in.x_device, out.rstd, w, false, false);
  };
  EXPECT_THROW(backward(narrow, out.dw, in.dy_device, in.w_device), std::logic_error);
  EXPECT_THROW(backward(out.dx, out.dw, narrow, in.w_device), std::logic_error);
  EXPECT_THROW(backward(out.dx, out.dw, in.dy_device, short_w), std::logic_error);
  EXPECT_THROW(backward(out.dx, short_w, in.dy_device, in.w_device), std::logic_error);
  EXPECT_THROW(backward(out.dx, poisoned({4}, Dtype::kFp64), in.dy_device, in.w_device), std::logic_error);
  // Rows that do not follow one another.
  const Tensor apart = poisoned({3, 6}, Dtype::kFp32).columns(0, 4);
  EXPECT_THROW(rmsnorm_forward(stream, out.y, out.rstd, apart, in.w_device, kEps), std::logic_error);
  EXPECT_THROW(rmsnorm_forward(stream, apart, out.rstd, in.x_device, in.w_device, kEps), std::logic_error);
  EXPECT_THROW(backward(apart, out.dw, in.dy_device, in.w_device), std::logic_error);
  EXPECT_THROW(backward(out.dx, out.dw, apart, in.w_device), std::logic_error);
  EXPECT_THROW(rmsnorm_forward_unfused(stream, out.y, out.rstd, out.y, out.dx, apart, in.w_device, kEps), std::logic_error);
}

TEST(RowSums, AddPartialRowsInOrder) {
  for (Dtype dtype : testing::kFloatDtypes) {
    const Dtype accumulator = accumulator_of(dtype);
    for (std::int64_t columns : {1, 7, 255, 256, 257, 600}) {
      for (std::int64_t rows : {1, 2, 33}) {
        const std::vector<double> values = rounded(random_values(rows * columns, 4), accumulator);
        const Tensor partials = device_tensor(values, {rows, columns}, accumulator);
        std::vector<double> sums(static_cast<std::size_t>(columns));
        for (std::size_t i = 0; i < values.size(); ++i) sums[i % sums.size()] += values[i];
        const std::vector<double> start = random_values(columns, 5);
        for (Dtype output : {dtype, accumulator}) {
          const double allowed = testing::tolerance(output);
          const Tensor overwritten = poisoned({columns}, output), added = device_tensor(start, {columns}, output);
          add_row_sums(device().compute(), overwritten, partials, false);
          EXPECT_LE(relative_error(values_of(overwritten), sums), allowed)
              << rows << " x " << columns << " " << dtype_name(output);
          std::vector<double> expected = rounded(start, output);
          for (std::size_t c = 0; c < expected.size(); ++c) expected[c] += sums[c];
          add_row_sums(device().compute(), added, partials, true);
          EXPECT_LE(relative_error(values_of(added), expected), allowed)
              << rows << " x " << columns << " " << dtype_name(output);
        }
      }
    }
  }
}

// 1e8 + 1 - 1e8 in fp32 tells the order: from the first row to the last it is 0.
TEST(RowSums, TheOrderIsFixed) {
  const Tensor out = poisoned({2}, Dtype::kFp32);
  add_row_sums(device().compute(), out, device_tensor({1e8, 1, 1, 1e8, -1e8, -1e8}, {3, 2}, Dtype::kFp32), false);
  EXPECT_EQ(values_of(out), (std::vector<double>{0, 0}));
  add_row_sums(device().compute(), out, device_tensor({1e8, 1e8, -1e8, -1e8, 1, 1}, {3, 2}, Dtype::kFp32), false);
  EXPECT_EQ(values_of(out), (std::vector<double>{1, 1}));
}

TEST(RowSums, ThePartialsDependOnTheShapeOnly) {
  EXPECT_EQ(row_sum_partials(0), 1);
  EXPECT_EQ(row_sum_partials(31), 1);
  EXPECT_EQ(row_sum_partials(64), 2);
  EXPECT_EQ(row_sum_partials(1 << 20), 64);
  const Tensor partials = allocate_row_sum_partials(100, 5, Dtype::kBf16, device().compute());
  EXPECT_EQ(partials.shape(), (Shape{3, 5}));
  EXPECT_EQ(partials.dtype(), Dtype::kFp32);
  EXPECT_THROW(add_row_sums(device().compute(), poisoned({4}, Dtype::kFp32), partials, false), std::logic_error);
  EXPECT_THROW(add_row_sums(device().compute(), poisoned({5}, Dtype::kFp64), partials, false), std::logic_error);
}

}  // namespace
}  // namespace ref5d::of_rmsnorm
