#include "common/model/gpt.h"

#include <algorithm>
#include <map>

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

std::vector<std::shared_ptr<Parameter>> Gpt::parameters_of(std::int64_t unit) const {
  if (unit == 0) return embedding->parameters();
  if (unit == config_.layers + 1) return head->parameters();
  return blocks[static_cast<std::size_t>(unit - 1)]->parameters();
}

void Gpt::keep(const std::vector<Units>& here) {
  struct Uses {
    int all = 0, here = 0;
  };
  std::map<Parameter*, Uses> uses;
  for (std::int64_t unit = 0; unit < unit_count(); ++unit) {
    const bool is_here =
        std::any_of(here.begin(), here.end(), [&](const Units& u) { return unit >= u.begin && (u.end < 0 || unit < u.end); });
    for (const auto& p : parameters_of(unit)) {
      ++uses[p.get()].all;
      uses[p.get()].here += is_here ? 1 : 0;
    }
  }
  for (const auto& [p, n] : uses) {
    Placement& placement = p->placement;
    if (placement.dim < 0) placement.segments = {{0, p->global_shape[0]}};
    placement.dim = std::max(placement.dim, 0);
    if (n.here == 0) placement.segments.clear();
    for (Segment& s : placement.segments) s.replicas *= n.all / n.here;
    p->uses = n.here;
  }
}

std::vector<Parameter*> Gpt::parameters() const {
  std::vector<Parameter*> all;
  for (std::int64_t unit = 0; unit < unit_count(); ++unit) {
    for (const auto& p : parameters_of(unit)) {
      if (std::find(all.begin(), all.end(), p.get()) == all.end()) all.push_back(p.get());
    }
  }
  return all;
}

void Gpt::materialise(const StorageOptions& options, Stream& stream, const std::function<void(Parameter&)>& filled) {
  for (Parameter* p : parameters()) {
    ref5d::materialise(*p, options, stream);
    if (filled) filled(*p);
  }
}

Tensor Gpt::forward(Context& ctx, const Tensor& input, Saved& saved, Units units) {
  Tensor x = input;
  const std::int64_t last = config_.layers + 1, end = units.end < 0 ? unit_count() : units.end;
  for (std::int64_t unit = units.begin; unit < end; ++unit) {
    x = hooked_forward(hooks, unit, [&] {
      if (unit == 0) return embedding->forward(ctx);
      if (unit < last) return blocks[static_cast<std::size_t>(unit - 1)]->forward(ctx, x, saved);
      head->loss(ctx, head->logits(ctx, x, saved), saved);
      return Tensor();
    });
    if (unit > 0 && unit < last) ctx.see("hidden/" + std::to_string(unit - 1), x);
  }
  return x;
}

Tensor Gpt::backward(Context& ctx, const Tensor& doutput, Saved& saved, Units units) {
  Tensor dx = doutput;
  const std::int64_t last = config_.layers + 1, end = units.end < 0 ? unit_count() : units.end;
  for (std::int64_t unit = end - 1; unit >= units.begin; --unit) {
    dx = hooked_backward(hooks, unit, [&] {
      if (unit == last) return head->backward(ctx, saved);
      if (unit > 0) return blocks[static_cast<std::size_t>(unit - 1)]->backward(ctx, dx, saved);
      embedding->backward(ctx, dx);
      return Tensor();
    });
  }
  return dx;
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
    return head->gather_logits(ctx, head->logits(ctx, x, dropped));
  });
}

}  // namespace ref5d
