#include "common/model/unit_pass.h"

namespace ref5d {

namespace {

using Hook = void (UnitHooks::*)(std::int64_t unit);

void call_before(const Gpt& gpt, Hook hook, std::int64_t unit) {
  for (UnitHooks* h : gpt.hooks) (h->*hook)(unit);
}
void call_after(const Gpt& gpt, Hook hook, std::int64_t unit) {
  for (auto h = gpt.hooks.rbegin(); h != gpt.hooks.rend(); ++h) ((*h)->*hook)(unit);
}

bool is_block(const Gpt& gpt, std::int64_t unit) { return unit > 0 && unit + 1 < gpt.unit_count(); }
Block& block_of(const Gpt& gpt, std::int64_t unit) { return *gpt.blocks[static_cast<std::size_t>(unit - 1)]; }
std::int64_t end_of(const Gpt& gpt, const Units& units) { return units.end < 0 ? gpt.unit_count() : units.end; }

}  // namespace

ForwardPass::ForwardPass(Gpt& gpt, Context& ctx, Tensor input, Saved& saved, Units units)
    : gpt_(gpt), ctx_(ctx), saved_(saved), flow_{.x = std::move(input)}, unit_(units.begin), end_(end_of(gpt, units)) {}

void ForwardPass::step() {
  if (phase_ == 0) call_before(gpt_, &UnitHooks::before_forward, unit_);
  if (!run_phase()) return;
  call_after(gpt_, &UnitHooks::after_forward, unit_);
  if (is_block(gpt_, unit_)) ctx_.see("hidden/" + std::to_string(unit_ - 1), flow_.x);
  phase_ = 0;
  ++unit_;
}

// Whether it was the unit's last.
bool ForwardPass::run_phase() {
  if (is_block(gpt_, unit_)) {
    block_of(gpt_, unit_).forward_phase(Block::kPhases[phase_], ctx_, flow_, saved_);
    return ++phase_ == Block::kPhases.size();
  }
  if (unit_ == 0) {
    flow_.x = gpt_.embedding->forward(ctx_);
  } else {
    gpt_.head->loss(ctx_, gpt_.head->logits(ctx_, flow_.x, saved_), saved_);
    flow_.x = {};
  }
  return true;
}

BackwardPass::BackwardPass(Gpt& gpt, Context& ctx, Tensor doutput, Saved& saved, Units units)
    : gpt_(gpt), ctx_(ctx), saved_(saved), flow_{.x = std::move(doutput)}, unit_(end_of(gpt, units) - 1), begin_(units.begin) {}

void BackwardPass::step() {
  if (phase_ == 0) begin_unit();
  if (!run_phase()) return;
  call_after(gpt_, &UnitHooks::after_backward, unit_);
  phase_ = 0;
  --unit_;
}

void BackwardPass::begin_unit() {
  call_before(gpt_, &UnitHooks::before_backward, unit_);
  ctx_.weight_grads->begin_unit(unit_);
  if (!ctx_.weight_grads->deferred()) call_before(gpt_, &UnitHooks::before_weight_gradients, unit_);
}

bool BackwardPass::run_phase() {
  if (is_block(gpt_, unit_)) {
    block_of(gpt_, unit_).backward_phase(Block::kPhases[Block::kPhases.size() - 1 - phase_], ctx_, flow_, saved_);
    return ++phase_ == Block::kPhases.size();
  }
  if (unit_ == 0) {
    gpt_.embedding->backward(ctx_, flow_.x);
    flow_.x = {};
  } else {
    flow_.x = gpt_.head->backward(ctx_, saved_);
  }
  return true;
}

void run_weight_gradients(Gpt& gpt, WeightGrads& work) {
  work.run_all([&gpt](std::int64_t unit) { call_before(gpt, &UnitHooks::before_weight_gradients, unit); });
}

}  // namespace ref5d
