#include "common/tensor/host_tensor.h"

#include <fmt/core.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "common/device/bf16.h"
#include "common/device/error.h"

namespace ref5d {
namespace {

static_assert(std::endian::native == std::endian::little, "files and host tensors are little-endian");

std::int32_t int32_from_double(double value, std::size_t index) {
  const double rounded = std::nearbyint(value);  // ties to even in the default rounding mode
  if (!(rounded >= std::numeric_limits<std::int32_t>::min() && rounded <= std::numeric_limits<std::int32_t>::max())) {
    throw InputError(
        fmt::format("value {} at index {} does not fit int32; it must be between -2147483648 and 2147483647", value, index));
  }
  return static_cast<std::int32_t>(rounded);
}

template <typename T>
T load(const std::vector<std::byte>& data, std::size_t index) {
  T value;
  std::memcpy(&value, data.data() + index * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
void store(std::vector<std::byte>& data, std::size_t index, T value) {
  std::memcpy(data.data() + index * sizeof(T), &value, sizeof(T));
}

}  // namespace

bool HostTensor::all_finite() const {
  if (dtype == Dtype::kInt32) return true;
  // Of a number that is not finite every bit of the exponent is set; it is in the last two bytes, bf16's and fp32's 8 bits
  // long.
  const unsigned exponent = dtype == Dtype::kFp64 ? 0x7ff0 : 0x7f80;
  const std::size_t size = dtype_size(dtype);
  for (std::size_t end = size; end <= data.size(); end += size) {
    const unsigned top = std::to_integer<unsigned>(data[end - 1]) << 8 | std::to_integer<unsigned>(data[end - 2]);
    if ((top & exponent) == exponent) return false;
  }
  return true;
}

std::vector<double> HostTensor::to_doubles() const {
  const auto n = static_cast<std::size_t>(numel());
  if (data.size() != n * dtype_size(dtype)) {
    throw RunError(fmt::format("a host tensor of {} {} elements holds {} bytes; it needs {}", n, dtype_name(dtype), data.size(),
                               n * dtype_size(dtype)));
  }
  std::vector<double> values(n);
  for (std::size_t i = 0; i < n; ++i) {
    switch (dtype) {
      case Dtype::kFp64: values[i] = load<double>(data, i); break;
      case Dtype::kFp32: values[i] = static_cast<double>(load<float>(data, i)); break;
      case Dtype::kBf16:
        values[i] = static_cast<double>(std::bit_cast<float>(std::uint32_t{load<std::uint16_t>(data, i)} << 16));
        break;
      case Dtype::kInt32: values[i] = static_cast<double>(load<std::int32_t>(data, i)); break;
    }
  }
  return values;
}

HostTensor HostTensor::from_doubles(const std::vector<double>& values, std::vector<std::int64_t> shape, Dtype dtype) {
  HostTensor tensor{dtype, std::move(shape), {}};
  if (tensor.numel() != static_cast<std::int64_t>(values.size())) {
    throw InputError(
        fmt::format("{} values were given for a shape of {} elements; they must be as many", values.size(), tensor.numel()));
  }
  tensor.data.resize(values.size() * dtype_size(dtype));
  for (std::size_t i = 0; i < values.size(); ++i) {
    switch (dtype) {
      case Dtype::kFp64: store(tensor.data, i, values[i]); break;
      case Dtype::kFp32: store(tensor.data, i, static_cast<float>(values[i])); break;
      case Dtype::kBf16: store(tensor.data, i, bf16(values[i]).bits); break;
      case Dtype::kInt32: store(tensor.data, i, int32_from_double(values[i], i)); break;
    }
  }
  return tensor;
}

}  // namespace ref5d
