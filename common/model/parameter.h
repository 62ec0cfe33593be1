// A parameter: its global identity, which part of it is here, and where its weight and gradient live.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/model/placement.h"
#include "common/tensor/tensor.h"

namespace ref5d {

// How a gradient is summed over micro-batches.
enum class GradientMode {
  kDirect,    // weight gradients are added to a gradient in the model's dtype (the rule for fp32 and fp64)
  kSeparate,  // bf16: a bf16 gradient per micro-batch, added to an fp32 sum: 2 + 4 bytes
  kFused,     // bf16: the weight-gradient product adds into the fp32 sum itself: 4 bytes
};

enum class Init { kNormal, kZero, kOne };

class Parameter {
 public:
  // init_std is used by Init::kNormal alone.
  Parameter(std::string name_, Shape global_shape_, Init init_, double init_std_, bool decay_)
      : name(std::move(name_)), global_shape(std::move(global_shape_)), init(init_), init_std(init_std_), decay(decay_) {}
  Parameter(const Parameter&) = delete;
  Parameter& operator=(const Parameter&) = delete;

  const std::string name;  // Hugging Face's
  const Shape global_shape;
  const Init init;
  const double init_std;
  const bool decay;  // matrices only: never norms and biases
  Placement placement;

  // The shape of the part that is here (before any flat range).
  [[nodiscard]] Shape local_shape() const { return ref5d::local_shape(global_shape, placement); }
  [[nodiscard]] std::int64_t local_numel() const { return product(local_shape()); }

  Tensor weight;        // model dtype
  Tensor master;        // fp32 for bf16 weights, else undefined
  Tensor gradient;      // model dtype; undefined under kFused
  Tensor gradient_sum;  // fp32 for bf16 weights, else undefined
  GradientMode mode = GradientMode::kDirect;

  // The gradient of the step: what the optimizer reads.
  [[nodiscard]] const Tensor& final_gradient() const { return gradient_sum ? gradient_sum : gradient; }

  // A step starts: zero gradient, and `uses` contributions (below) expected for each of the micro-batches.
  void begin_step(Stream& stream, std::int64_t micro_batches, bool zero = true);

  // A kernel that computes (a contribution to) the gradient writes to target, adding if told to; then end_contribution() folds
  // it into the sum. `zeroed` asks for a target that can always be added to.
  struct Target {
    Tensor tensor;
    bool accumulate;
  };
  [[nodiscard]] Target begin_contribution(Stream& stream, bool zeroed = false);
  void end_contribution(Stream& stream);
  // Contributions that the step still expects: 0 once the gradient is final.
  [[nodiscard]] std::int64_t pending() const { return pending_; }

  int uses = 1;  // contributions per micro-batch: 2 for a tied embedding, 0 for what lives on other ranks
  // An expert's, and experts are on several ranks: the ranks that hold the same ones are fewer than those that compute other
  // tokens, and its gradient is summed over these alone. What ranks send each other's experts has reached them before.
  bool expert = false;
  // A tied weight of two pipeline stages: they add to its gradient at different times, so it stays whole over the step, also
  // where gradients are sharded.
  bool across_stages = false;
  // If they are on two ranks: the step expects one more contribution, the other rank's sum. It is added to final_gradient()
  // once the own passes are over, and then this is called, on whose stream it is final.
  bool summed_with_other_rank = false;
  void added_other_rank(Stream& stream) { count_contribution(stream); }
  // Called in turn when the last contribution of the step has been enqueued. Each is told on which stream the gradient is
  // final, whatever other streams have still to do, and returns the one on which what it adds is final: tensor parallelism sums
  // what several ranks share, and data parallelism reduces the sum.
  std::vector<std::function<Stream*(Parameter&, Stream&)>> on_final;

 private:
  void count_contribution(Stream& stream);

  std::int64_t pending_ = 0;
};

// One of a parameter's tensors (weight, gradient, a moment) without what lies outside of the placement's flat range: that
// belongs to other ranks. A tensor that has only the range is returned as it is, and so is an undefined one.
[[nodiscard]] Tensor held_part(const Parameter& p, const Tensor& tensor);

// The communication that makes a global tensor of the parts that the ranks hold. Every rank calls it, for the same parameters
// in the same order: those whose placement has segments or a flat range. So a parameter that is cut anywhere has one or the
// other everywhere, be it a segment of the whole dim.
using Gather = std::function<HostTensor(const Parameter&, const HostTensor& part)>;
// The global tensor of one of a parameter's tensors. Throws std::logic_error if some of it is elsewhere and there is no gather.
[[nodiscard]] HostTensor gather_global(const Parameter& p, const Tensor& tensor, Stream& stream, const Gather& gather = {});
// The reverse: overwrites one of a parameter's tensors, whole or its flat range, with its part of a global tensor.
void load_part(const Parameter& p, const Tensor& tensor, const HostTensor& global, Stream& stream);

struct StorageOptions {
  Dtype dtype = Dtype::kFp32;
  GradientMode bf16_gradients = GradientMode::kSeparate;
  bool fp32_gradient_sum = true;  // bf16 without it: the gradient is summed in bf16 (right only without accumulation)
  std::uint64_t seed = 1;
  bool gradients = true;  // false: weights only
};
// Allocates storage for the local part and fills the weight by its init rule.
void materialise(Parameter& p, const StorageOptions& options, Stream& stream);
// The tensor that holds the most exact weight: the master where there is one.
[[nodiscard]] inline const Tensor& exact_weight(const Parameter& p) { return p.master ? p.master : p.weight; }
// Overwrites weight (and master) with a global tensor's values. Throws InputError if the shape is another, or a value is
// not a finite number.
void load_weight(Parameter& p, const HostTensor& global, Stream& stream);

}  // namespace ref5d
