#include "common/model/parameter.h"

#include <cstring>
#include <stdexcept>

#include "common/device/error.h"
#include "common/kernels/elementwise.h"
#include "common/kernels/random.h"

namespace ref5d {

Shape Parameter::local_shape() const {
  Shape shape = global_shape;
  if (placement.dim >= 0) {
    std::int64_t n = 0;
    for (const Segment& s : placement.segments) n += s.end - s.begin;
    shape[static_cast<std::size_t>(placement.dim)] = n;
  }
  return shape;
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
  if (pending_ == 0 && on_final) on_final(*this);
}

namespace {

// Calls copy(global offset, local offset, elements) for each contiguous stretch of the local part.
template <typename F>
void for_each_stretch(const Shape& global, const Placement& placement, F&& copy) {
  if (placement.dim < 0) return copy(std::int64_t{0}, std::int64_t{0}, product(global));
  const auto d = static_cast<std::size_t>(placement.dim);
  std::int64_t outer = 1, inner = 1, local_dim = 0;
  for (std::size_t i = 0; i < d; ++i) outer *= global[i];
  for (std::size_t i = d + 1; i < global.size(); ++i) inner *= global[i];
  for (const Segment& s : placement.segments) local_dim += s.end - s.begin;
  for (std::int64_t o = 0; o < outer; ++o) {
    std::int64_t at = o * local_dim;
    for (const Segment& s : placement.segments) {
      copy((o * global[d] + s.begin) * inner, at * inner, (s.end - s.begin) * inner);
      at += s.end - s.begin;
    }
  }
}

}  // namespace

HostTensor cut(const HostTensor& global, const Placement& placement) {
  HostTensor local{global.dtype, global.shape, {}};
  std::int64_t elements = 0;
  for_each_stretch(global.shape, placement, [&](std::int64_t, std::int64_t, std::int64_t n) { elements += n; });
  if (placement.dim >= 0) {
    auto& dim = local.shape[static_cast<std::size_t>(placement.dim)];
    dim = global.numel() == 0 ? 0 : elements / (global.numel() / dim);
  }
  const std::size_t size = dtype_size(global.dtype);
  local.data.resize(static_cast<std::size_t>(elements) * size);
  for_each_stretch(global.shape, placement, [&](std::int64_t from, std::int64_t to, std::int64_t n) {
    std::memcpy(local.data.data() + static_cast<std::size_t>(to) * size,
                global.data.data() + static_cast<std::size_t>(from) * size, static_cast<std::size_t>(n) * size);
  });
  return local;
}

void paste(HostTensor& global, const HostTensor& local, const Placement& placement) {
  if (local.dtype != global.dtype) throw std::logic_error("paste between dtypes");
  const std::size_t size = dtype_size(global.dtype);
  for_each_stretch(global.shape, placement, [&](std::int64_t to, std::int64_t from, std::int64_t n) {
    std::memcpy(global.data.data() + static_cast<std::size_t>(to) * size,
                local.data.data() + static_cast<std::size_t>(from) * size, static_cast<std::size_t>(n) * size);
  });
}

namespace {

// The tensor that holds the most exact weight: the master where there is one.
const Tensor& exact_weight(const Parameter& p) { return p.master ? p.master : p.weight; }

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
  exact_weight(p).copy_from(cut(global, p.placement), stream);
  if (p.master) convert(stream, p.weight, p.master);
}

}  // namespace ref5d
