// One decoder block, pre-norm: x + attention(norm(x)), then + mlp(norm(.)). Forward and backward are sequences of phases that
// can be resumed, so that a forward of one micro-batch and a backward of another can be interleaved.
#pragma once

#include <any>
#include <array>
#include <memory>

#include "common/model/attention_layer.h"
#include "common/model/mlp.h"
#include "common/model/norm.h"

namespace ref5d {

// What flows from phase to phase of one pass through a block.
struct BlockFlow {
  Tensor x = {};            // forward: the residual stream; backward: its gradient
  Tensor inner = {};        // what the MLP's phases hand on,
  std::any mlp_state = {};  // and what they know beside it
  Saved own = {};           // what recomputation brought back (full recompute)
};

class Block {
 public:
  Block(const GptConfig& config, std::int64_t layer);

  // The last three are the MLP's; a dense one is an expert that gets every token. Backward runs the phases in reverse. Between
  // two phases of one pass any other pass may run; a pass is its flow, its saved and its ctx.batch.
  enum class Phase { kAttention, kDispatch, kExperts, kCombine };
  static constexpr std::array kPhases = {Phase::kAttention, Phase::kDispatch, Phase::kExperts, Phase::kCombine};
  void forward_phase(Phase phase, Context& ctx, BlockFlow& flow, Saved& saved);
  void backward_phase(Phase phase, Context& ctx, BlockFlow& flow, Saved& saved);

  // All phases. x [R, H] -> [R, H]; the gradient of the output -> that of the input.
  [[nodiscard]] Tensor forward(Context& ctx, const Tensor& x, Saved& saved);
  [[nodiscard]] Tensor backward(Context& ctx, const Tensor& dy, Saved& saved);

  [[nodiscard]] std::vector<std::shared_ptr<Parameter>> parameters() const;
  // Of the model, but moved by no gradient.
  [[nodiscard]] std::vector<std::shared_ptr<Parameter>> buffers() const { return mlp->buffers(); }
  [[nodiscard]] std::int64_t layer() const { return layer_; }

  std::unique_ptr<Norm> attention_norm, mlp_norm;
  std::unique_ptr<AttentionLayer> attention;
  std::unique_ptr<Mlp> mlp;

 private:
  void run_phase(Phase phase, Context& ctx, BlockFlow& flow, Saved& saved);
  void run_phase_backward(Phase phase, Context& ctx, BlockFlow& flow, Saved& saved);
  [[nodiscard]] Tensor attention_forward_half(Context& ctx, const Tensor& x, Saved& saved);
  // y <- x + dropout(y)
  [[nodiscard]] Tensor residual(Context& ctx, const Tensor& x, const Tensor& y, DropoutSite site) const;
  // The gradient that goes into the sublayer: dropout's mask on dy (dy itself stays for the residual path).
  [[nodiscard]] Tensor residual_backward(Context& ctx, const Tensor& dy, DropoutSite site) const;
  // y = x under the site's mask; y may be x.
  void residual_dropout(const Context& ctx, const Tensor& y, const Tensor& x, DropoutSite site) const;

  std::int64_t layer_;
};

}  // namespace ref5d
