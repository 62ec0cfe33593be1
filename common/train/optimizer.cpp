#include "common/train/optimizer.h"

#include <stdexcept>

#include "common/kernels/elementwise.h"

namespace ref5d {

namespace {

std::int64_t blocks_of(const Parameter& p) { return norm_blocks(product(p.global_shape)); }

// The partials of what is here, in blocks of the global tensor: the same sums however gradients were bucketed or sharded.
void compute_partials(Stream& stream, const OptimizerState& s) {
  const Parameter& p = *s.parameter;
  const Tensor gradient = held_part(p, p.final_gradient());
  const std::vector<Runs> runs = runs_of(p.global_shape, p.placement);
  if (runs.empty()) fill_zero(stream, s.partials.raw(), s.partials.bytes());
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const double weight = p.placement.dim < 0 ? 1.0 : 1.0 / static_cast<double>(p.placement.segments[i].replicas);
    sum_of_squares_of_part(stream, s.partials, gradient, runs[i], p.placement.flat_begin, weight, i > 0);
  }
}

}  // namespace

Optimizer::Optimizer(const std::vector<Parameter*>& parameters, const OptimizerOptions& options, Stream& stream)
    : options_(options) {
  std::int64_t blocks = 0;
  for (const Parameter* p : parameters) blocks += blocks_of(*p);
  partials_ = Tensor::empty({blocks}, Dtype::kFp64, MemoryCategory::kWorkspace, stream);
  norm_ = Tensor::zeros({1}, Dtype::kFp64, MemoryCategory::kWorkspace, stream);
  scale_ = Tensor::zeros({1}, Dtype::kFp64, MemoryCategory::kWorkspace, stream);
  std::int64_t at = 0;
  for (Parameter* p : parameters) {
    const Shape shape = held_part(*p, p->weight).shape();
    const Dtype dtype = accumulator_of(p->weight.dtype());
    states_.push_back({p, Tensor::zeros(shape, dtype, MemoryCategory::kOptimizer, stream),
                       Tensor::zeros(shape, dtype, MemoryCategory::kOptimizer, stream),
                       partials_.rows(at, at + blocks_of(*p))});
    at += blocks_of(*p);
  }
}

void Optimizer::step(Stream& stream) {
  for (const OptimizerState& s : states_) {
    if (s.parameter->pending() == 0) continue;
    throw std::logic_error("the gradient of " + s.parameter->name + " is not final: " + std::to_string(s.parameter->pending()) +
                           " contributions are pending");
  }
  compute_norm(stream);
  ++steps_;
  apply(stream);
}

void Optimizer::compute_norm(Stream& stream) {
  for (const OptimizerState& s : states_) compute_partials(stream, s);
  if (options_.reduce_partials) options_.reduce_partials(stream, states_, partials_);
  clip_scale(stream, scale_, norm_, partials_, options_.clip);
}

void Optimizer::apply(Stream& stream) {
  for (const OptimizerState& s : states_) {
    const Parameter& p = *s.parameter;
    if (s.m.numel() == 0) continue;  // another rank's
    AdamwOptions o = options_.adamw;
    if (!p.decay && !options_.decay_all) o.weight_decay = 0;
    const Tensor weight = held_part(p, p.weight), master = held_part(p, p.master);
    if (!options_.keep_master && master) convert(stream, master, weight);
    adamw(stream, weight, master, held_part(p, p.final_gradient()), s.m, s.v, scale_, o, steps_);
  }
}

}  // namespace ref5d
