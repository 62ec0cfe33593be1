#include "common/train/trainer.h"

#include <chrono>

#include "common/device/device.h"
#include "common/kernels/correction_bias.h"
#include "common/kernels/elementwise.h"
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
  context_.routes = options.routes;
  const GptConfig& c = options.model;
  if (c.has_experts())
    context_.router_load = Tensor::zeros({c.layers, 3 * c.moe.experts}, Dtype::kFp64, MemoryCategory::kWorkspace, stream_);
}

void Trainer::accumulate() {
  const std::int64_t step = optimizer_->steps_taken();
  batch_ = global_batch(data_, step, options_.global_batch);
  context_.step = static_cast<std::uint32_t>(step);
  for (const Tensor& sum : {context_.loss_sum, context_.aux_loss_sum, context_.router_load})
    if (sum) fill_zero(stream_, sum.raw(), sum.bytes());
  if (options_.accumulate) return options_.accumulate(gpt_, context_, loader_, batch_);
  accumulate_gradients(gpt_, context_, loader_, batch_, options_.micro_batch, options_.faults);
}

void Trainer::update() {
  optimizer_->step(stream_);
  if (options_.model.moe.bias_speed != 0) move_correction_biases();
  if (options_.after_update) options_.after_update(gpt_, context_);
}

// By the load of all tokens of the step.
void Trainer::move_correction_biases() {
  const std::int64_t experts = options_.model.moe.experts;
  const Tensor load = Tensor::empty(context_.router_load.shape(), Dtype::kFp64, MemoryCategory::kWorkspace, stream_);
  copy_matrix(stream_, load, context_.router_load);
  if (options_.sum_router_load) options_.sum_router_load(stream_, load);
  const std::vector<Parameter*> biases = gpt_.buffers();
  for (std::size_t layer = 0; layer < biases.size(); ++layer) {
    if (biases[layer]->weight.numel() == 0) continue;  // another stage's
    const auto row = static_cast<std::int64_t>(layer);
    const Tensor counts = load.rows(row, row + 1).view({3 * experts}).rows(0, experts);
    move_correction_bias(stream_, biases[layer]->weight, counts, options_.model.moe.bias_speed);
  }
}

StepResult Trainer::step() {
  const auto begin = std::chrono::steady_clock::now();
  accumulate();
  update();
  StepResult result;
  result.loss = context_.loss_sum.to_doubles(stream_)[0] * batch_.loss_scale();
  if (options_.model.has_aux_losses()) result.aux_loss = context_.aux_loss_sum.to_doubles(stream_)[0];
  if (context_.router_load) result.router_load = context_.router_load.to_doubles(stream_);
  result.grad_norm = optimizer_->norm().to_doubles(stream_)[0];
  result.ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  result.valid_tokens = batch_.valid_labels;
  for (const Row& row : batch_.rows) result.tokens += static_cast<std::int64_t>(row.tokens.size());
  return result;
}

NamedTensors Trainer::global_weights(const std::string& prefix) {
  NamedTensors tensors;
  for (const std::vector<Parameter*>& all : {gpt_.parameters(), gpt_.buffers()})
    for (const Parameter* p : all) tensors[prefix + p->name] = global(*p, exact_weight(*p));
  return tensors;
}

NamedTensors Trainer::global_gradients(const std::string& prefix) {
  NamedTensors tensors;
  for (const Parameter* p : gpt_.parameters()) tensors[prefix + p->name] = global(*p, p->final_gradient());
  return tensors;
}

NamedValues Trainer::gradients() { return values_of(global_gradients()); }
NamedValues Trainer::weights() {
  NamedValues all = values_of(global_weights());
  for (const Parameter* p : gpt_.buffers()) all.erase(p->name);
  return all;
}
NamedValues Trainer::buffers() {
  NamedTensors tensors;
  for (const Parameter* p : gpt_.buffers()) tensors[p->name] = global(*p, p->weight);
  return values_of(tensors);
}

}  // namespace ref5d
