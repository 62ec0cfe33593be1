#include "common/model/gpt.h"

#include <algorithm>
#include <map>

#include "common/model/unit_pass.h"

namespace ref5d {

namespace {

// A unit's forward between its hooks.
template <typename Work>
Tensor hooked(const std::vector<UnitHooks*>& hooks, std::int64_t unit, const Work& work) {
  for (UnitHooks* h : hooks) h->before_forward(unit);
  Tensor result = work();
  for (auto h = hooks.rbegin(); h != hooks.rend(); ++h) (*h)->after_forward(unit);
  return result;
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

bool Gpt::has(std::int64_t unit) const {
  return std::any_of(here_.begin(), here_.end(),
                     [&](const Units& u) { return unit >= u.begin && (u.end < 0 || unit < u.end); });
}

void Gpt::keep(const std::vector<Units>& here) {
  here_ = here;
  struct Uses {
    int all = 0, here = 0;
  };
  std::map<Parameter*, Uses> uses;
  for (std::int64_t unit = 0; unit < unit_count(); ++unit) {
    for (const auto& p : parameters_of(unit)) {
      ++uses[p.get()].all;
      uses[p.get()].here += has(unit) ? 1 : 0;
    }
  }
  for (const auto& [p, n] : uses) {
    Placement& placement = p->placement;
    if (placement.dim < 0) placement.segments = {{0, p->global_shape[0]}};
    placement.dim = std::max(placement.dim, 0);
    if (n.here == 0) placement.segments.clear();
    for (Segment& s : placement.segments) s.replicas *= n.all / n.here;
    p->uses = std::min(p->uses, n.here);  // 0 already for experts of other ranks
  }
  for (std::int64_t layer = 0; layer < config_.layers; ++layer) {
    for (const auto& p : blocks[static_cast<std::size_t>(layer)]->buffers()) {
      p->placement = {.dim = 0, .segments = {}};
      if (has(layer + 1)) p->placement.segments = {{0, p->global_shape[0]}};
    }
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

std::vector<Parameter*> Gpt::buffers() const {
  std::vector<Parameter*> all;
  for (const auto& block : blocks)
    for (const auto& p : block->buffers()) all.push_back(p.get());
  return all;
}

void Gpt::materialise(const StorageOptions& options, Stream& stream, const std::function<void(Parameter&)>& filled) {
  for (Parameter* p : parameters()) {
    ref5d::materialise(*p, options, stream);
    if (filled) filled(*p);
  }
  StorageOptions exact = options;
  exact.dtype = accumulator_of(options.dtype);
  exact.gradients = false;
  for (Parameter* p : buffers()) ref5d::materialise(*p, exact, stream);
}

Tensor Gpt::forward(Context& ctx, const Tensor& input, Saved& saved, Units units) {
  ForwardPass pass(*this, ctx, input, saved, units);
  while (!pass.done()) pass.step();
  return pass.result();
}

Tensor Gpt::backward(Context& ctx, const Tensor& doutput, Saved& saved, Units units) {
  BackwardPass pass(*this, ctx, doutput, saved, units);
  while (!pass.done()) pass.step();
  return pass.result();
}

Tensor Gpt::logits(Context& ctx, const Tensor& input, Units units) {
  Tensor x = input;
  const std::int64_t end = units.end < 0 ? unit_count() : units.end;
  for (std::int64_t unit = units.begin; unit < end; ++unit) {
    x = hooked(hooks, unit, [&] {
      Saved dropped;
      if (unit == 0) return embedding->forward(ctx);
      if (unit <= config_.layers) return blocks[static_cast<std::size_t>(unit - 1)]->forward(ctx, x, dropped);
      return head->gather_logits(ctx, head->logits(ctx, x, dropped));
    });
  }
  return x;
}

}  // namespace ref5d
