// What the tests of LayerNorm and RMSNorm share.
#pragma once

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/kernel_testing.h"

namespace ref5d::testing {

inline constexpr double kNormEps = 1e-5;

// Inputs as the kernel sees them.
struct NormInputs {
  std::int64_t rows, columns;
  Dtype dtype;
  std::vector<double> x, w, dy;
  Tensor x_device, w_device, dy_device;
  NormInputs(std::int64_t rows_, std::int64_t columns_, Dtype dtype_)
      : rows(rows_),
        columns(columns_),
        dtype(dtype_),
        x(rounded(random_values(rows * columns, 1), dtype)),
        w(rounded(random_values(columns, 2), dtype)),
        dy(rounded(random_values(rows * columns, 3), dtype)),
        x_device(device_tensor(x, {rows, columns}, dtype)),
        w_device(device_tensor(w, {columns}, dtype)),
        dy_device(device_tensor(dy, {rows, columns}, dtype)) {}
  [[nodiscard]] std::string text() const {
    return std::to_string(rows) + " x " + std::to_string(columns) + " " + dtype_name(dtype);
  }
};

// Where a gradient goes: NaN if it is overwritten, ones if it is added to.
inline Tensor gradient_target(const Shape& shape, Dtype dtype, bool accumulate) {
  if (!accumulate) return poisoned(shape, dtype);
  return device_tensor(std::vector<double>(static_cast<std::size_t>(product(shape)), 1.0), shape, dtype);
}
inline std::vector<double> plus_one(std::vector<double> v) {
  for (double& x : v) x += 1;
  return v;
}

inline double length(const std::vector<double>& v) {
  double sum = 0;
  for (double x : v) sum += x * x;
  return std::sqrt(sum);
}
// dx is a difference, which cancels to almost nothing where there are few columns: its terms rstd * dy * w set the scale too.
inline void expect_dx(const NormInputs& in, const Tensor& dx, const std::vector<double>& expected,
                      const std::vector<double>& rstd) {
  std::vector<double> terms(in.dy.size()), error = values_of(dx);
  for (std::size_t i = 0; i < terms.size(); ++i) {
    terms[i] = rstd[i / in.w.size()] * in.dy[i] * in.w[i % in.w.size()];
    error[i] -= expected[i];
  }
  const double allowed = tolerance(in.dtype) * length(expected) + tolerance(accumulator_of(in.dtype)) * length(terms);
  EXPECT_LE(length(error), allowed) << in.text();  // false for NaN
}

}  // namespace ref5d::testing
