// A tensor of one value, which work on streams changes and the test reads.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "common/tensor/tensor.h"

namespace ref5d::testing {

inline constexpr std::int64_t kFilledSize = 1000;

inline Tensor filled(double v, Stream& stream) {
  const std::vector<double> values(kFilledSize, v);
  return Tensor::from_host(HostTensor::from_doubles(values, {kFilledSize}, Dtype::kFp64), Dtype::kFp64,
                           MemoryCategory::kWorkspace, stream);
}
// After the stream has run.
inline double value_of(const Tensor& t, Stream& stream) {
  const std::vector<double> v = t.to_doubles(stream);
  for (double x : v) EXPECT_EQ(x, v[0]);
  return v[0];
}

}  // namespace ref5d::testing
