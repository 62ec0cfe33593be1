#include "common/model/gpt.h"

#include <algorithm>

namespace ref5d {

namespace {
UnitHooks no_hooks;
}

Gpt::Gpt(const GptConfig& config) : config_(config) {
  validate(config);
  hooks = &no_hooks;
  embedding = std::make_unique<Embedding>(config);
  for (std::int64_t l = 0; l < config.layers; ++l) blocks.push_back(std::make_unique<Block>(config, l));
  head = std::make_unique<Head>(config, config.tied ? embedding->tokens : nullptr);
}

void Gpt::keep(std::int64_t begin, std::int64_t end, bool with_embedding, bool with_head) {
  std::erase_if(blocks, [&](const auto& b) { return b->layer() < begin || b->layer() >= end; });
  // A tied weight that loses one of its ends is used once here.
  if (config_.tied && embedding && head && with_embedding != with_head) --embedding->tokens->uses;
  if (!with_embedding) embedding.reset();
  if (!with_head) head.reset();
}

std::vector<Parameter*> Gpt::parameters() const {
  std::vector<Parameter*> all;
  auto add = [&all](const std::vector<std::shared_ptr<Parameter>>& some) {
    for (const auto& p : some) {
      if (std::find(all.begin(), all.end(), p.get()) == all.end()) all.push_back(p.get());
    }
  };
  if (embedding) add(embedding->parameters());
  for (const auto& b : blocks) add(b->parameters());
  if (head) add(head->parameters());
  return all;
}

void Gpt::materialise(const StorageOptions& options, Stream& stream) {
  for (Parameter* p : parameters()) ref5d::materialise(*p, options, stream);
}

Tensor Gpt::forward(Context& ctx, const Tensor& input, Saved& saved) {
  Tensor x = input;
  if (embedding) {
    hooks->before_forward(0);
    x = embedding->forward(ctx);
    hooks->after_forward(0);
  }
  for (const auto& block : blocks) {
    hooks->before_forward(block->layer() + 1);
    x = block->forward(ctx, x, saved);
    hooks->after_forward(block->layer() + 1);
    ctx.see("hidden/" + std::to_string(block->layer()), x);
  }
  if (!head) return x;
  hooks->before_forward(config_.layers + 1);
  head->loss(ctx, head->logits(ctx, x, saved), saved);
  hooks->after_forward(config_.layers + 1);
  return {};
}

Tensor Gpt::backward(Context& ctx, const Tensor& doutput, Saved& saved) {
  Tensor dx = doutput;
  if (head) {
    hooks->before_backward(config_.layers + 1);
    dx = head->backward(ctx, saved);
    hooks->after_backward(config_.layers + 1);
  }
  for (auto it = blocks.rbegin(); it != blocks.rend(); ++it) {
    Block& block = **it;
    hooks->before_backward(block.layer() + 1);
    dx = block.backward(ctx, dx, saved);
    hooks->after_backward(block.layer() + 1);
  }
  if (!embedding) return dx;
  hooks->before_backward(0);
  embedding->backward(ctx, dx);
  hooks->after_backward(0);
  return {};
}

Tensor Gpt::logits(Context& ctx) {
  Saved dropped;
  Tensor x = embedding->forward(ctx);
  for (const auto& block : blocks) {
    Saved block_dropped;
    x = block->forward(ctx, x, block_dropped);
  }
  return head->logits(ctx, x, dropped);
}

}  // namespace ref5d
