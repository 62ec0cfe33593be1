// One pass of a micro-batch through some units of the model, a phase at a time: a block has four phases, the embedding and the
// head are one each. Between two phases any other pass may run, which is how a forward of one micro-batch and a backward of
// another take turns. A pass is its context (ctx.batch, ctx.weight_grads), its saved and its place.
#pragma once

#include "common/model/gpt.h"

namespace ref5d {

class ForwardPass {
 public:
  // All must outlive the pass. input: as of Gpt::forward.
  ForwardPass(Gpt& gpt, Context& ctx, Tensor input, Saved& saved, Units units = {});
  [[nodiscard]] bool done() const { return unit_ == end_; }
  void step();
  // Once it is done: Gpt::forward's.
  [[nodiscard]] const Tensor& result() const { return flow_.x; }

 private:
  bool run_phase();

  Gpt& gpt_;
  Context& ctx_;
  Saved& saved_;
  BlockFlow flow_;
  std::int64_t unit_, end_;
  std::size_t phase_ = 0;
};

class BackwardPass {
 public:
  BackwardPass(Gpt& gpt, Context& ctx, Tensor doutput, Saved& saved, Units units = {});
  [[nodiscard]] bool done() const { return unit_ < begin_; }
  void step();
  [[nodiscard]] const Tensor& result() const { return flow_.x; }

 private:
  void begin_unit();
  bool run_phase();

  Gpt& gpt_;
  Context& ctx_;
  Saved& saved_;
  BlockFlow flow_;
  std::int64_t unit_, begin_;
  std::size_t phase_ = 0;
};

// Weight-gradient work that backward passes have left for later (WeightGrads::defer), with each unit's hook before its own.
void run_weight_gradients(Gpt& gpt, WeightGrads& work);

}  // namespace ref5d
