// Help for testing kernels: random tensors, and gradients checked by finite differences in fp64.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "common/device/device.h"
#include "common/tensor/tensor.h"

namespace ref5d::testing {

inline Stream& stream() { return device().compute(); }

inline std::vector<double> random_values(std::int64_t n, unsigned seed, double scale = 1.0) {
  std::mt19937_64 generator(seed);
  std::normal_distribution<double> normal(0.0, scale);
  std::vector<double> v(static_cast<std::size_t>(n));
  for (double& x : v) x = normal(generator);
  return v;
}

inline Tensor device_tensor(const std::vector<double>& values, Shape shape, Dtype dtype) {
  return Tensor::from_host(HostTensor::from_doubles(values, std::move(shape), Dtype::kFp64), dtype, MemoryCategory::kWorkspace,
                           device().compute());
}
inline Tensor device_ints(const std::vector<std::int32_t>& values, Shape shape) {
  Tensor t = Tensor::empty(std::move(shape), Dtype::kInt32, MemoryCategory::kWorkspace, device().compute());
  copy_to_device(device().compute(), t.raw(), values.data(), values.size() * 4);
  return t;
}
using Ints = std::vector<std::int32_t>;
inline Tensor ints(const Ints& v) { return device_ints(v, {static_cast<std::int64_t>(v.size())}); }
// Filled with NaN, so that an element nobody wrote shows.
inline Tensor poisoned(Shape shape, Dtype dtype) {
  const auto n = static_cast<std::size_t>(product(shape));
  return device_tensor(std::vector<double>(n, std::nan("")), std::move(shape), dtype);
}
inline std::vector<double> values_of(const Tensor& t) { return t.to_doubles(device().compute()); }
// What a dtype makes of values.
inline std::vector<double> rounded(const std::vector<double>& v, Dtype dtype) {
  return HostTensor::from_doubles(v, {static_cast<std::int64_t>(v.size())}, dtype).to_doubles();
}

inline double relative_error(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return INFINITY;
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  const double e = std::sqrt(difference) / std::max(std::sqrt(norm), 1e-300);
  return norm == 0 && difference == 0 ? 0 : std::isnan(e) ? INFINITY : e;
}

// The gradient of loss(x) = sum(weights * f(x)) by central differences, to compare with a backward kernel given dy = weights.
// fp64 with step h: error about h^2 + 1e-16 / h, so 1e-8 relative is expected at h = 1e-5.
inline std::vector<double> finite_difference(const std::function<std::vector<double>(const std::vector<double>&)>& f,
                                             std::vector<double> x, const std::vector<double>& weights, double h = 1e-5) {
  auto loss = [&](const std::vector<double>& at) {
    const std::vector<double> y = f(at);
    double sum = 0;
    for (std::size_t i = 0; i < y.size(); ++i) sum += weights[i] * y[i];
    return sum;
  };
  std::vector<double> gradient(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double kept = x[i];
    x[i] = kept + h;
    const double up = loss(x);
    x[i] = kept - h;
    gradient[i] = (up - loss(x)) / (2 * h);
    x[i] = kept;
  }
  return gradient;
}

// Sizes at which loops and tiles go wrong: one, odd, prime, just around powers of two.
inline const std::vector<std::int64_t> kAwkwardSizes = {1, 2, 3, 7, 8, 13, 31, 32, 33, 65, 127, 129};

// Relative error allowed for one rounding of the result and a short sum.
inline double tolerance(Dtype d) { return d == Dtype::kFp64 ? 1e-13 : d == Dtype::kFp32 ? 2e-6 : 6e-3; }

}  // namespace ref5d::testing
