#include "common/model/parameter.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "common/device/error.h"
#include "common/kernels/elementwise.h"
#include "common/kernels/random.h"

namespace ref5d {

Shape local_shape(const Shape& global, const Placement& placement) {
  if (placement.dim < 0) return global;
  Shape shape = global;
  auto& dim = shape[static_cast<std::size_t>(placement.dim)] = 0;
  for (const Segment& s : placement.segments) dim += s.end - s.begin;
  return shape;
}

std::vector<Runs> runs_of(const Shape& global, const Placement& placement) {
  const std::int64_t n = product(global);
  if (placement.dim < 0) return {{1, n, 0, n, 0, n}};
  const auto d = static_cast<std::size_t>(placement.dim);
  std::int64_t outer = 1, inner = 1;
  for (std::size_t i = 0; i < d; ++i) outer *= global[i];
  for (std::size_t i = d + 1; i < global.size(); ++i) inner *= global[i];
  const std::int64_t local_dim = local_shape(global, placement)[d];
  std::vector<Runs> runs;
  std::int64_t at = 0;
  for (const Segment& s : placement.segments) {
    runs.push_back({outer, (s.end - s.begin) * inner, at * inner, local_dim * inner, s.begin * inner, global[d] * inner});
    at += s.end - s.begin;
  }
  return runs;
}

void Parameter::begin_step(Stream& stream, std::int64_t micro_batches, bool zero) {
  pending_ = uses * micro_batches;
  const Tensor& sum = final_gradient();
  if (zero) fill_zero(stream, sum.raw(), sum.bytes());
}

Parameter::Target Parameter::begin_contribution(Stream& stream, bool zeroed) {
  if (mode == GradientMode::kDirect) return {gradient, true};
  if (mode == GradientMode::kFused) return {gradient_sum, true};
  if (zeroed) fill_zero(stream, gradient.raw(), gradient.bytes());
  return {gradient, zeroed};
}

void Parameter::end_contribution(Stream& stream) {
  if (mode == GradientMode::kSeparate) scaled_add(stream, gradient_sum, gradient, 1.0);
  if (--pending_ < 0) throw std::logic_error(name + " got more gradient contributions than its step expects");
  if (pending_ == 0 && on_final) on_final(*this, stream);
}

namespace {

struct FlatRange {
  std::int64_t begin, end;
  [[nodiscard]] std::int64_t size() const { return end - begin; }
};

FlatRange flat_range(const Placement& placement, std::int64_t local_numel) {
  const FlatRange range{placement.flat_begin, placement.flat_end < 0 ? local_numel : placement.flat_end};
  if (range.begin < 0 || range.begin > range.end || range.end > local_numel) {
    throw std::logic_error("the flat range " + std::to_string(range.begin) + " to " + std::to_string(range.end) +
                           " is not in a part of " + std::to_string(local_numel) + " elements");
  }
  return range;
}

// Calls copy(global offset, offset in the part, elements) for each contiguous stretch of the part.
template <typename F>
void for_each_stretch(const Shape& global, const Placement& placement, F&& copy) {
  const FlatRange range = flat_range(placement, product(local_shape(global, placement)));
  for (const Runs& runs : runs_of(global, placement)) {
    for (std::int64_t i = 0; i < runs.count; ++i) {
      const std::int64_t local = runs.local_begin + i * runs.local_stride;
      const std::int64_t begin = std::max(local, range.begin), end = std::min(local + runs.length, range.end);
      if (begin < end) copy(runs.global_begin + i * runs.global_stride + (begin - local), begin - range.begin, end - begin);
    }
  }
}

bool whole_range(const Placement& placement) { return placement.flat_begin == 0 && placement.flat_end < 0; }

}  // namespace

HostTensor cut(const HostTensor& global, const Placement& placement) {
  const Shape shape = local_shape(global.shape, placement);
  const std::int64_t elements = flat_range(placement, product(shape)).size();
  const std::size_t size = dtype_size(global.dtype);
  HostTensor part{global.dtype, whole_range(placement) ? shape : Shape{elements},
                  std::vector<std::byte>(static_cast<std::size_t>(elements) * size)};
  for_each_stretch(global.shape, placement, [&](std::int64_t from, std::int64_t to, std::int64_t n) {
    std::memcpy(part.data.data() + static_cast<std::size_t>(to) * size,
                global.data.data() + static_cast<std::size_t>(from) * size, static_cast<std::size_t>(n) * size);
  });
  return part;
}

void paste(HostTensor& global, const HostTensor& part, const Placement& placement) {
  if (part.dtype != global.dtype) throw std::logic_error("paste between dtypes");
  const std::int64_t elements = flat_range(placement, product(local_shape(global.shape, placement))).size();
  if (part.numel() != elements) {
    throw std::logic_error("paste of " + std::to_string(part.numel()) + " elements into a part of " + std::to_string(elements));
  }
  const std::size_t size = dtype_size(global.dtype);
  for_each_stretch(global.shape, placement, [&](std::int64_t to, std::int64_t from, std::int64_t n) {
    std::memcpy(global.data.data() + static_cast<std::size_t>(to) * size,
                part.data.data() + static_cast<std::size_t>(from) * size, static_cast<std::size_t>(n) * size);
  });
}

Tensor held_part(const Parameter& p, const Tensor& tensor) {
  const FlatRange range = flat_range(p.placement, p.local_numel());
  if (!tensor || tensor.numel() == range.size()) return tensor;
  if (tensor.numel() != p.local_numel()) {
    throw std::logic_error("a tensor of " + p.name + " has " + std::to_string(tensor.numel()) + " elements; its part has " +
                           std::to_string(p.local_numel()) + ", its flat range " + std::to_string(range.size()));
  }
  return tensor.view({tensor.numel()}).rows(range.begin, range.end);
}

HostTensor gather_global(const Parameter& p, const Tensor& tensor, Stream& stream, const Gather& gather) {
  const HostTensor part = held_part(p, tensor).to_host(stream);
  // Not only where something is missing: a rank that happens to hold all of it must take part where another holds nothing.
  const bool is_cut = p.placement.dim >= 0 || !whole_range(p.placement);
  if (is_cut && gather) return gather(p, part);
  const std::int64_t n = product(p.global_shape);
  if (part.numel() != n) {
    throw std::logic_error(p.name + " is cut: " + std::to_string(part.numel()) + " of its " + std::to_string(n) +
                           " elements are here, and no gather was given for the others");
  }
  HostTensor global{part.dtype, p.global_shape, std::vector<std::byte>(part.data.size())};
  paste(global, part, p.placement);
  return global;
}

void load_part(const Parameter& p, const Tensor& tensor, const HostTensor& global, Stream& stream) {
  Placement placement = p.placement;
  if (tensor.numel() == p.local_numel()) {  // all that the segments leave, whatever range of it this rank updates
    placement.flat_begin = 0;
    placement.flat_end = -1;
  }
  tensor.copy_from(cut(global, placement), stream);
}

namespace {

// Fills each segment's window of the local tensor with the values that the global tensor has there.
void fill_by_rule(const Parameter& p, std::uint64_t seed, Stream& stream) {
  const Tensor& out = exact_weight(p);
  if (p.init != Init::kNormal) return fill_constant(stream, out, p.init == Init::kOne ? 1.0 : 0.0);
  if (p.global_shape.size() != 2) throw std::logic_error(p.name + ": normal initialisation is for matrices");
  const std::uint64_t key = hash_name(p.name);
  const std::int64_t columns = p.global_shape[1];
  if (p.placement.dim < 0) return fill_normal(stream, out, {0, 0, columns}, seed, key, 0.0, p.init_std);
  std::int64_t at = 0;
  for (const Segment& s : p.placement.segments) {
    const std::int64_t n = s.end - s.begin;
    if (p.placement.dim == 0) {
      fill_normal(stream, out.rows(at, at + n), {s.begin, 0, columns}, seed, key, 0.0, p.init_std);
    } else {
      fill_normal(stream, out.columns(at, at + n), {0, s.begin, columns}, seed, key, 0.0, p.init_std);
    }
    at += n;
  }
}

}  // namespace

void materialise(Parameter& p, const StorageOptions& options, Stream& stream) {
  const Shape shape = p.local_shape();
  const bool bf16 = options.dtype == Dtype::kBf16;
  p.weight = Tensor::empty(shape, options.dtype, MemoryCategory::kParameters, stream);
  if (bf16) p.master = Tensor::empty(shape, Dtype::kFp32, MemoryCategory::kMaster, stream);
  fill_by_rule(p, options.seed, stream);
  if (bf16) convert(stream, p.weight, p.master);
  if (!options.gradients) return;
  p.mode = bf16 && options.fp32_gradient_sum ? options.bf16_gradients : GradientMode::kDirect;
  if (p.mode != GradientMode::kFused) p.gradient = Tensor::zeros(shape, options.dtype, MemoryCategory::kGradients, stream);
  if (p.mode != GradientMode::kDirect)
    p.gradient_sum = Tensor::zeros(shape, Dtype::kFp32, MemoryCategory::kGradientAccumulation, stream);
}

void load_weight(Parameter& p, const HostTensor& global, Stream& stream) {
  if (global.shape != p.global_shape) {
    throw InputError("weight " + p.name + " has shape " + to_string(global.shape) + " in the file, but the model needs " +
                     to_string(p.global_shape) + "; give the model flags that the weights were made with");
  }
  if (global.dtype == Dtype::kInt32)
    throw InputError("weight " + p.name + " holds integers in the file; give a file of floating-point weights");
  load_part(p, exact_weight(p), global, stream);
  if (!p.master) return;
  if (p.master.numel() == p.weight.numel()) return convert(stream, p.weight, p.master);
  // The master is a flat range of the weight: the weight is the rounding of what the masters of all ranks hold.
  load_part(p, p.weight, HostTensor::from_doubles(global.to_doubles(), global.shape, p.master.dtype()), stream);
}

}  // namespace ref5d
