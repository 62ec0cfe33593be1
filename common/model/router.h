// The router of a layer: which experts each token uses, and with which weights. Its arithmetic is in the accumulator's dtype,
// fp32, or fp64 in the proof mode: a score that is rounded to bf16 chooses other experts.
#pragma once

#include <memory>

#include "common/model/config.h"
#include "common/model/linear.h"

namespace ref5d {

// The choices of R rows. The experts in `chosen`, and so all that is sent and computed; -1 for what capacity dropped.
struct Routing {
  Tensor chosen;   // [R, k] int32
  Tensor weights;  // [R, k], in the accumulator's dtype
};

// The other tokens of the replica's micro-batch, which the balance of the load and the capacity of experts are about. On one
// device there are none.
class RouterScope {
 public:
  virtual ~RouterScope() = default;
  // Which tokens the rows are that the router gets.
  [[nodiscard]] virtual ResidualRows rows(const MicroBatch& b) const { return b.residual; }
  // x = its sum over the ranks that have the micro-batch's other tokens.
  virtual void sum(Context&, const Tensor& /*x*/) const {}
  // The choices [R, k] without those beyond the capacity of their expert, which takes the first tokens of the micro-batch.
  [[nodiscard]] virtual Tensor within_capacity(Context& ctx, const Tensor& chosen, std::int64_t experts,
                                               std::int64_t capacity) const;
  // Of several ranks that compute the same losses, one adds them to ctx.aux_loss_sum;
  [[nodiscard]] virtual bool counts_losses() const { return true; }
  // and of several that have the same rows, whose gradients are added up, one adds the losses' gradient.
  [[nodiscard]] virtual bool adds_loss_gradient() const { return true; }
};

class Router {
 public:
  Router(const GptConfig& config, std::int64_t layer);

  // x [R, H].
  [[nodiscard]] Routing route(Context& ctx, const Tensor& x, Saved& saved);
  // dweights [R, k] -> the gradient of the logits [R, E], of what the experts made and of the losses; dx [R, H] gets its part
  // added.
  [[nodiscard]] Tensor backward_input(Context& ctx, const Tensor& dx, const Tensor& dweights, Saved& saved);
  // Queues dW += dlogits^T x.
  void backward_weight(Context& ctx, const Tensor& x, const Tensor& dlogits) const;

  std::shared_ptr<Parameter> weight;  // [E, H]
  std::shared_ptr<Parameter> bias;    // [E], the correction bias: no gradient moves it; null where there is none
  std::unique_ptr<RouterScope> scope = std::make_unique<RouterScope>();

 private:
  struct Kept {
    Tensor logits, scores, chosen, balance_gradient;
  };
  [[nodiscard]] Tensor losses(Context& ctx, const Tensor& logits, const Tensor& scores, const Tensor& chosen);
  [[nodiscard]] double z_scale(const Context& ctx) const;
  [[nodiscard]] Tensor load_row(const Context& ctx) const;
  void count_sent(Context& ctx, const Tensor& scores, const Tensor& kept) const;

  MoeConfig moe_;
  std::int64_t layer_;
};

}  // namespace ref5d
