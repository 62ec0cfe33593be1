#include "common/model/parameter.h"

#include <stdexcept>

#include "common/device/error.h"
#include "common/kernels/elementwise.h"
#include "common/kernels/random.h"

namespace ref5d {

void Parameter::begin_step(Stream& stream, std::int64_t micro_batches, bool zero) {
  pending_ = uses * micro_batches + (summed_with_other_rank ? 1 : 0);
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
  count_contribution(stream);
}

void Parameter::count_contribution(Stream& stream) {
  if (--pending_ < 0) throw std::logic_error(name + " got more gradient contributions than its step expects");
  if (pending_ > 0) return;
  Stream* final_on = &stream;
  for (const auto& then : on_final) final_on = then(*this, *final_on);
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
  if (is_cut(p.placement) && gather) return gather(p, part);
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
  const std::uint64_t key = hash_bytes(p.name);
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
  if (!global.all_finite())
    throw InputError("weight " + p.name + " has an infinity or a NaN in the file; give one whose numbers are finite");
  load_part(p, exact_weight(p), global, stream);
  if (!p.master) return;
  if (p.master.numel() == p.weight.numel()) return convert(stream, p.weight, p.master);
  // The master is a flat range of the weight: the weight is the rounding of what the masters of all ranks hold.
  load_part(p, p.weight, HostTensor::from_doubles(global.to_doubles(), global.shape, p.master.dtype()), stream);
}

}  // namespace ref5d
