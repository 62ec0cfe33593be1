// Training on one device: the baseline that every parallel layout is compared with, and the whole of lesson 01.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "common/train/accumulate.h"
#include "common/train/gather_parts.h"
#include "common/train/optimizer.h"
#include "common/verify/run_values.h"

namespace ref5d {

struct TrainerOptions {
  GptConfig model;
  StorageOptions storage;
  OptimizerOptions optimizer;
  AccumulationFaults faults;
  std::int64_t micro_batch = 2;   // sequences per micro-batch
  std::int64_t global_batch = 2;  // sequences per optimizer step
  GemmKind gemm = GemmKind::kBlas;
  AttentionKind attention = AttentionKind::kFlash;
  Recompute recompute = Recompute::kNone;
  bool fused = true;
  std::uint32_t redraw_dropout = 0;  // a fault to show (pitfall P27)
  std::uint64_t other_dropout = 0;   // the same: added to the seed of the masks
  RouteLog* routes = nullptr;        // of a model with experts: sees, or replays, what tokens choose
  std::string load;                  // weights to start from; empty: the init rule

  // What a layout over several ranks brings along; all empty on one device.
  // Called once the model is built and before it has storage: changes placements and swaps parts.
  std::function<void(Gpt&)> cut;
  // What becomes of each micro-batch's tokens.
  LoaderHooks loader;
  // Called for each parameter as soon as its storage is filled, and before the next one's is allocated: gives up what other
  // ranks hold. So no rank needs the whole model at any time.
  std::function<void(Parameter&)> shard;
  // Stands in for accumulate_gradients: leaves the final gradients in the parameters and the loss in ctx.loss_sum. It is given
  // the whole global batch, and keeps the number of its valid labels whatever share of the rows it takes.
  std::function<void(Gpt&, Context& ctx, Loader&, const GlobalBatch&)> accumulate;
  // Called after each optimizer step, with the new weights in place: hands them round.
  std::function<void(Gpt&, Context& ctx)> after_update;
  // Adds up router_load [L, 3 E] over the ranks that had other tokens.
  std::function<void(Stream&, const Tensor& load)> sum_router_load;
  // For gradients(), weights(), dumps and checkpoints.
  Gather gather;
  // Stands in for Gpt::logits, where the model's layers are on several ranks. For generating text.
  std::function<Tensor(Gpt&, Context& ctx)> logits;
  // For dumps, where ranks see different activations: the names that any of them has seen, from this rank's.
  std::function<std::vector<std::string>(const std::vector<std::string>& mine)> all_names;
  // For dumps: narrows `part`, which part of the activation called so this rank holds; and the whole from the ranks' parts, or
  // an empty tensor on ranks that do not write.
  std::function<void(const std::string& name, ActivationPart& part)> activation_part;
  std::function<HostTensor(const HostTensor& mine, const ActivationPart& part)> gather_activation;
};

struct StepResult {
  double loss = 0;       // cross-entropy per valid label of the global batch
  double grad_norm = 0;  // before clipping
  double ms = 0;
  std::int64_t tokens = 0, valid_tokens = 0;
  std::optional<double> aux_loss = {};   // of routers, per micro-batch; none where no loss is on
  std::vector<double> router_load = {};  // Context::router_load: of the tokens that were here
};

class Trainer {
 public:
  Trainer(const TrainerOptions& options, const Dataset& data);

  // One optimizer step on the next global batch. Waits for the device, so that the time is true.
  StepResult step();

  // The two halves of it, for whoever wants to look in between.
  void accumulate();
  // The optimizer's step, then what the load moves.
  void update();

  [[nodiscard]] const TrainerOptions& options() const { return options_; }
  [[nodiscard]] Gpt& gpt() { return gpt_; }
  [[nodiscard]] Optimizer& optimizer() { return *optimizer_; }
  [[nodiscard]] Context& context() { return context_; }
  [[nodiscard]] const Dataset& data() const { return data_; }
  [[nodiscard]] const Loader& loader() const { return loader_; }
  [[nodiscard]] Stream& stream() { return stream_; }
  [[nodiscard]] std::int64_t steps_taken() const { return optimizer_->steps_taken(); }

  // The global tensor of one of a parameter's tensors, wherever its parts are.
  [[nodiscard]] HostTensor global(const Parameter& p, const Tensor& tensor) {
    return gather_global(p, tensor, stream_, options_.gather);
  }
  // The most exact weights, and the buffers, as global tensors, each under prefix + name.
  [[nodiscard]] NamedTensors global_weights(const std::string& prefix = "");
  [[nodiscard]] NamedTensors global_gradients(const std::string& prefix = "");
  // Values, those of weights without the buffers'.
  [[nodiscard]] NamedValues gradients();
  [[nodiscard]] NamedValues weights();
  [[nodiscard]] NamedValues buffers();

 private:
  void move_correction_biases();

  TrainerOptions options_;
  const Dataset& data_;
  Stream& stream_;
  Gpt gpt_;
  WeightGrads weight_grads_;
  Context context_;
  Loader loader_;
  std::unique_ptr<Optimizer> optimizer_;
  GlobalBatch batch_;
};

}  // namespace ref5d
