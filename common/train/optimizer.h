// The optimizer step: global gradient norm, clipping, AdamW.
#pragma once

#include <vector>

#include "common/kernels/adamw.h"
#include "common/model/parameter.h"

namespace ref5d {

struct OptimizerOptions {
  AdamwOptions adamw;
  double clip = 1.0;        // largest gradient norm; 0: no clipping
  bool decay_all = false;   // a fault to show (pitfall P15): norms and biases decay too
  bool keep_master = true;  // false, a fault to show (P14): the master is rebuilt from the bf16 weight before each update
};

class Optimizer {
 public:
  // Moments for each parameter, zero, in the accumulator's dtype.
  Optimizer(std::vector<Parameter*> parameters, const OptimizerOptions& options, Stream& stream);

  // norm -> clip factor -> update, all enqueued on the stream; step counts from 1.
  void step(Stream& stream);
  [[nodiscard]] std::int64_t steps_taken() const { return steps_; }
  void set_steps_taken(std::int64_t steps) { steps_ = steps; }

  // fp64 [1]: the gradient norm of the last step, before clipping.
  [[nodiscard]] const Tensor& norm() const { return norm_; }

  struct State {
    Parameter* parameter;
    Tensor m, v;
  };
  [[nodiscard]] const std::vector<State>& states() const { return states_; }

 private:
  void compute_norm(Stream& stream);

  OptimizerOptions options_;
  std::vector<State> states_;
  Tensor partials_, norm_, scale_;
  std::int64_t steps_ = 0;
};

}  // namespace ref5d
