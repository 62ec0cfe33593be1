#include "common/train/optimizer.h"

#include "common/kernels/elementwise.h"

namespace ref5d {

Optimizer::Optimizer(std::vector<Parameter*> parameters, const OptimizerOptions& options, Stream& stream) : options_(options) {
  std::int64_t blocks = 0;
  for (Parameter* p : parameters) {
    const Dtype dtype = accumulator_of(p->weight.dtype());
    states_.push_back({p, Tensor::zeros(p->weight.shape(), dtype, MemoryCategory::kOptimizer, stream),
                       Tensor::zeros(p->weight.shape(), dtype, MemoryCategory::kOptimizer, stream)});
    blocks += norm_blocks(p->weight.numel());
  }
  partials_ = Tensor::empty({blocks}, Dtype::kFp64, MemoryCategory::kWorkspace, stream);
  norm_ = Tensor::zeros({1}, Dtype::kFp64, MemoryCategory::kWorkspace, stream);
  scale_ = Tensor::zeros({1}, Dtype::kFp64, MemoryCategory::kWorkspace, stream);
}

// Each parameter once, in fixed blocks: the same sum however gradients were bucketed.
void Optimizer::compute_norm(Stream& stream) {
  std::int64_t at = 0;
  for (const State& s : states_) {
    const std::int64_t n = norm_blocks(s.parameter->weight.numel());
    sum_of_squares(stream, partials_.rows(at, at + n), s.parameter->final_gradient());
    at += n;
  }
  clip_scale(stream, scale_, norm_, partials_, options_.clip);
}

void Optimizer::step(Stream& stream) {
  compute_norm(stream);
  ++steps_;
  for (const State& s : states_) {
    const Parameter& p = *s.parameter;
    AdamwOptions o = options_.adamw;
    if (!p.decay && !options_.decay_all) o.weight_decay = 0;
    if (!options_.keep_master && p.master) convert(stream, p.master, p.weight);
    adamw(stream, p.weight, p.master, p.final_gradient(), s.m, s.v, scale_, o, steps_);
  }
}

}  // namespace ref5d
