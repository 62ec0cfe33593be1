#include "common/train/trainer.h"

#include <chrono>

#include "common/device/device.h"
#include "common/train/weights.h"

namespace ref5d {

namespace {

NamedValues values_of(const NamedTensors& tensors) {
  NamedValues values;
  for (const auto& [name, t] : tensors) values[name] = t.to_doubles();
  return values;
}

}  // namespace

Trainer::Trainer(const TrainerOptions& options, const Dataset& data)
    : options_(options),
      data_(data),
      stream_(device().compute()),
      gpt_(options.model),
      context_(stream_),
      loader_(options.model, options.storage.dtype, stream_, options.loader) {
  if (options.cut) options.cut(gpt_);
  gpt_.materialise(options.storage, stream_, options.shard);
  if (!options.load.empty()) load_weights(gpt_, options.load, stream_);
  optimizer_ = std::make_unique<Optimizer>(gpt_.parameters(), options.optimizer, stream_);
  context_.dtype = options.storage.dtype;
  context_.gemm = options.gemm;
  context_.attention = options.attention;
  context_.recompute = options.recompute;
  context_.dropout = options.model.dropout;
  context_.dropout_seed = options.storage.seed + options.other_dropout;
  context_.redraw_dropout = options.redraw_dropout;
  context_.fused = options.fused;
  context_.weight_grads = &weight_grads_;
  context_.loss_sum = Tensor::zeros({1}, Dtype::kFp64, MemoryCategory::kWorkspace, stream_);
  context_.aux_loss_sum = Tensor::zeros({1}, Dtype::kFp64, MemoryCategory::kWorkspace, stream_);
}

void Trainer::accumulate() {
  const std::int64_t step = optimizer_->steps_taken();
  batch_ = global_batch(data_, step, options_.global_batch);
  context_.step = static_cast<std::uint32_t>(step);
  for (const Tensor& sum : {context_.loss_sum, context_.aux_loss_sum}) fill_zero(stream_, sum.raw(), sum.bytes());
  if (options_.accumulate) return options_.accumulate(gpt_, context_, loader_, batch_);
  accumulate_gradients(gpt_, context_, loader_, batch_, options_.micro_batch, options_.faults);
}

void Trainer::update() {
  optimizer_->step(stream_);
  if (options_.after_update) options_.after_update(gpt_, context_);
}

StepResult Trainer::step() {
  const auto begin = std::chrono::steady_clock::now();
  accumulate();
  update();
  StepResult result;
  result.loss = context_.loss_sum.to_doubles(stream_)[0] * batch_.loss_scale();
  result.grad_norm = optimizer_->norm().to_doubles(stream_)[0];
  result.ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  result.valid_tokens = batch_.valid_labels;
  for (const Row& row : batch_.rows) result.tokens += static_cast<std::int64_t>(row.tokens.size());
  return result;
}

NamedTensors Trainer::global_weights(const std::string& prefix) {
  NamedTensors tensors;
  for (const Parameter* p : gpt_.parameters()) tensors[prefix + p->name] = global(*p, exact_weight(*p));
  return tensors;
}

NamedTensors Trainer::global_gradients(const std::string& prefix) {
  NamedTensors tensors;
  for (const Parameter* p : gpt_.parameters()) tensors[prefix + p->name] = global(*p, p->final_gradient());
  return tensors;
}

NamedValues Trainer::gradients() { return values_of(global_gradients()); }
NamedValues Trainer::weights() { return values_of(global_weights()); }

}  // namespace ref5d
