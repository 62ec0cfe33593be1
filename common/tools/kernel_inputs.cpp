#include "common/tools/kernel_inputs.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "common/device/device.h"
#include "common/kernels/random.h"

namespace ref5d {
namespace {

constexpr MemoryCategory kCategory = MemoryCategory::kWorkspace;

// A large tensor repeats its first values: drawing them is not what is timed.
constexpr std::int64_t kMostDrawn = std::int64_t{1} << 20;

// The sum of the four 16-bit numbers of one draw, less its mean: near to a normal distribution, and made of whole numbers and
// one product, so that no compiler or math library can round it differently.
double near_normal(std::uint64_t bits) {
  constexpr double kDeviation = 37836.9;  // of the sum: sqrt(4 * (2^32 - 1) / 12)
  std::int64_t sum = -2 * 65535;
  for (int part = 0; part < 4; ++part) sum += static_cast<std::int64_t>(bits >> (16 * part) & 0xffff);
  return static_cast<double>(sum) * (1 / kDeviation);
}

void repeat(const Tensor& tensor, std::int64_t from_elements) {
  const std::size_t size = dtype_size(tensor.dtype()), all = tensor.bytes();
  for (std::size_t done = static_cast<std::size_t>(from_elements) * size; done < all;) {
    const std::size_t count = std::min(done, all - done);
    copy_on_device(device().compute(), tensor.raw() + done, tensor.raw(), count);
    done += count;
  }
}

template <typename Draw>
Tensor drawn(const Shape& shape, Dtype dtype, std::uint64_t seed, const Draw& draw) {
  Stream& stream = device().compute();
  const Tensor tensor = Tensor::empty(shape, dtype, kCategory, stream);
  const std::int64_t count = std::min(tensor.numel(), kMostDrawn);
  std::mt19937_64 generator(seed);
  std::vector<double> values(static_cast<std::size_t>(count));
  for (double& value : values) value = draw(generator());
  const HostTensor host = HostTensor::from_doubles(values, {count}, dtype);
  copy_to_device(stream, tensor.raw(), host.data.data(), host.data.size());
  if (count > 0) repeat(tensor, count);
  return tensor;
}

}  // namespace

CaseInputs::CaseInputs(const KernelCase& one, CaseFill fill) : dtype_(one.dtype), fill_(fill), name_(one.name) {}

std::uint64_t CaseInputs::next_seed() { return hash_bytes(std::to_string(tensors_++), hash_bytes(name_)); }

Tensor CaseInputs::normal(const Shape& shape, double deviation) { return normal_in(dtype_, shape, deviation); }

Tensor CaseInputs::normal_in(Dtype dtype, const Shape& shape, double deviation) {
  return drawn(shape, dtype, next_seed(), [=](std::uint64_t bits) { return deviation * near_normal(bits); });
}

Tensor CaseInputs::positive_in(Dtype dtype, const Shape& shape) {
  return drawn(shape, dtype, next_seed(),
               [](std::uint64_t bits) { return 0.5 + static_cast<double>(bits >> 32) / 4294967296.0; });
}

Tensor CaseInputs::integers(const Shape& shape, std::int64_t low, std::int64_t limit) {
  const auto span = static_cast<std::uint64_t>(limit - low);
  return drawn(shape, Dtype::kInt32, next_seed(),
               [=](std::uint64_t bits) { return static_cast<double>(low + static_cast<std::int64_t>(bits % span)); });
}

Tensor CaseInputs::constants(const std::vector<double>& values, const Shape& shape, Dtype dtype) {
  const Tensor tensor = Tensor::empty(shape, dtype, kCategory, device().compute());
  tensor.copy_from(HostTensor::from_doubles(values, shape, dtype), device().compute());
  return tensor;
}

Tensor CaseInputs::target_in(Dtype dtype, const Shape& shape) {
  const double nothing = dtype == Dtype::kInt32 ? -1 : std::numeric_limits<double>::quiet_NaN();
  if (fill_ == CaseFill::kNan) return drawn(shape, dtype, 0, [=](std::uint64_t) { return nothing; });
  return Tensor::empty(shape, dtype, kCategory, device().compute());
}

}  // namespace ref5d
