// The optimizer step: global gradient norm, clipping, AdamW.
#pragma once

#include <functional>
#include <vector>

#include "common/kernels/adamw.h"
#include "common/kernels/grad_norm.h"
#include "common/model/parameter.h"

namespace ref5d {

// What the optimizer keeps of a parameter: the moments of the flat range that this rank updates, which is all of the local part
// unless the placement says otherwise.
struct OptimizerState {
  Parameter* parameter;
  Tensor m, v;
  // fp64: sums of squares of the gradient by fixed blocks of the global tensor, of what this rank holds of it.
  Tensor partials;
};

struct OptimizerOptions {
  AdamwOptions adamw;
  double clip = 1.0;        // largest gradient norm; 0: no clipping
  bool decay_all = false;   // a fault to show (pitfall P15): norms and biases decay too
  bool keep_master = true;  // false, a fault to show (P14): the master is rebuilt from the bf16 weight before each update
  // Sums the partials over the ranks that hold the rest of the parameters. `partials` is those of all states, joined: as many
  // on every rank that has the same parameters, however they are cut. Empty: everything is here.
  std::function<void(Stream&, const std::vector<OptimizerState>& states, const Tensor& partials)> reduce_partials;

  // In the first update, c g / (|c g| + eps) = g / (|g| + eps / c) with the clip factor c of a gradient of this norm: eps / c.
  [[nodiscard]] double epsilon_before_clip(double norm) const {
    return clip > 0 && norm > clip ? adamw.eps * norm / clip : adamw.eps;
  }
};

class Optimizer {
 public:
  // Moments for what each parameter's placement leaves here, zero, in the accumulator's dtype.
  Optimizer(const std::vector<Parameter*>& parameters, const OptimizerOptions& options, Stream& stream);

  // norm -> clip factor -> update, all enqueued on the stream; steps count from 1. Throws std::logic_error naming the parameter
  // if a gradient is not final.
  void step(Stream& stream);
  [[nodiscard]] std::int64_t steps_taken() const { return steps_; }
  void set_steps_taken(std::int64_t steps) { steps_ = steps; }

  // fp64 [1]: the gradient norm of the last step, before clipping.
  [[nodiscard]] const Tensor& norm() const { return norm_; }
  [[nodiscard]] const std::vector<OptimizerState>& states() const { return states_; }

 private:
  void compute_norm(Stream& stream);
  void apply(Stream& stream);

  OptimizerOptions options_;
  std::vector<OptimizerState> states_;
  Tensor partials_, norm_, scale_;
  std::int64_t steps_ = 0;
};

}  // namespace ref5d
