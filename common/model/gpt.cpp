#include "common/model/gpt.h"

#include <algorithm>

namespace ref5d {

namespace {

using Hooks = std::vector<UnitHooks*>;
using Hook = void (UnitHooks::*)(std::int64_t unit);

// The work of one unit between its hooks.
template <typename Work>
Tensor hooked(const Hooks& hooks, Hook before, Hook after, std::int64_t unit, const Work& work) {
  for (UnitHooks* h : hooks) (h->*before)(unit);
  Tensor result = work();
  for (auto h = hooks.rbegin(); h != hooks.rend(); ++h) ((*h)->*after)(unit);
  return result;
}
template <typename Work>
Tensor hooked_forward(const Hooks& hooks, std::int64_t unit, const Work& work) {
  return hooked(hooks, &UnitHooks::before_forward, &UnitHooks::after_forward, unit, work);
}
template <typename Work>
Tensor hooked_backward(const Hooks& hooks, std::int64_t unit, const Work& work) {
  return hooked(hooks, &UnitHooks::before_backward, &UnitHooks::after_backward, unit, work);
}

}  // namespace

Gpt::Gpt(const GptConfig& config) : config_(config) {
  validate(config);
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
  if (embedding) x = hooked_forward(hooks, 0, [&] { return embedding->forward(ctx); });
  for (const auto& block : blocks) {
    x = hooked_forward(hooks, block->layer() + 1, [&] { return block->forward(ctx, x, saved); });
    ctx.see("hidden/" + std::to_string(block->layer()), x);
  }
  if (!head) return x;
  return hooked_forward(hooks, config_.layers + 1, [&] {
    head->loss(ctx, head->logits(ctx, x, saved), saved);
    return Tensor();
  });
}

Tensor Gpt::backward(Context& ctx, const Tensor& doutput, Saved& saved) {
  Tensor dx = doutput;
  if (head) dx = hooked_backward(hooks, config_.layers + 1, [&] { return head->backward(ctx, saved); });
  for (auto block = blocks.rbegin(); block != blocks.rend(); ++block)
    dx = hooked_backward(hooks, (*block)->layer() + 1, [&] { return (*block)->backward(ctx, dx, saved); });
  if (!embedding) return dx;
  return hooked_backward(hooks, 0, [&] {
    embedding->backward(ctx, dx);
    return Tensor();
  });
}

Tensor Gpt::logits(Context& ctx) {
  Tensor x = hooked_forward(hooks, 0, [&] { return embedding->forward(ctx); });
  for (const auto& block : blocks) {
    x = hooked_forward(hooks, block->layer() + 1, [&] {
      Saved dropped;
      return block->forward(ctx, x, dropped);
    });
  }
  return hooked_forward(hooks, config_.layers + 1, [&] {
    Saved dropped;
    return head->logits(ctx, x, dropped);
  });
}

}  // namespace ref5d
