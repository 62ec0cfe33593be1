// A dense tensor in host memory: what files hold and what comparisons read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/tensor/dtype.h"

namespace ref5d {

struct HostTensor {
  Dtype dtype = Dtype::kFp64;
  std::vector<std::int64_t> shape;
  std::vector<std::byte> data;  // row-major, little-endian, numel() * dtype_size(dtype) bytes

  [[nodiscard]] std::int64_t numel() const {
    std::int64_t n = 1;
    for (std::int64_t d : shape) n *= d;
    return n;
  }
  // No infinity and no NaN.
  [[nodiscard]] bool all_finite() const;
  // Every element widened (exactly) to fp64.
  [[nodiscard]] std::vector<double> to_doubles() const;
  // Rounds values (to nearest even) to dtype; values.size() must be the product of shape.
  [[nodiscard]] static HostTensor from_doubles(const std::vector<double>& values, std::vector<std::int64_t> shape, Dtype dtype);
};

// Tensors by name, ordered by name.
using NamedTensors = std::map<std::string, HostTensor>;

}  // namespace ref5d
