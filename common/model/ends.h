// The two ends of the model: the embedding, and the head with the loss. Virtual, since tensor parallelism cuts both by
// vocabulary.
#pragma once

#include <memory>

#include "common/model/config.h"
#include "common/model/linear.h"
#include "common/model/norm.h"

namespace ref5d {

class Embedding {
 public:
  explicit Embedding(const GptConfig& config);
  Embedding(Embedding&&) = default;
  virtual ~Embedding() = default;

  // -> the residual stream [R, H]: the tokens' rows as they leave the region, plus the positions' if they are learned, then
  // dropout.
  [[nodiscard]] Tensor forward(Context& ctx);
  void backward(Context& ctx, const Tensor& dx);
  // Where the table that is here has each token, int32 [T]; an index outside of it where it has not.
  [[nodiscard]] virtual Tensor table_rows(Context& ctx) const { return ctx.batch->tokens; }
  [[nodiscard]] std::vector<std::shared_ptr<Parameter>> parameters() const;

  std::shared_ptr<Parameter> tokens;     // [V, H]
  std::shared_ptr<Parameter> positions;  // [S, H]; null with RoPE
  std::unique_ptr<Region> region = std::make_unique<Region>();
};

class Head {
 public:
  // The projection's weight is `tied` if given (the embedding's), else its own.
  Head(const GptConfig& config, std::shared_ptr<Parameter> tied);
  Head(Head&&) = default;
  virtual ~Head() = default;

  // The final norm and the projection: x [R, H] -> the logits [T, V] of the entries that are here.
  [[nodiscard]] Tensor logits(Context& ctx, const Tensor& x, Saved& saved);
  // Adds the micro-batch's loss to ctx.loss_sum and keeps the gradient of the logits.
  virtual void loss(Context& ctx, const Tensor& logits, Saved& saved);
  // Those of all entries. For generating text; training never needs them.
  [[nodiscard]] virtual Tensor gather_logits(Context&, const Tensor& logits) { return logits; }
  // -> the gradient of x [R, H].
  [[nodiscard]] Tensor backward(Context& ctx, Saved& saved);
  [[nodiscard]] std::vector<std::shared_ptr<Parameter>> parameters() const;

  std::unique_ptr<Norm> norm;
  std::unique_ptr<Linear> projection;
  std::unique_ptr<Region> region = std::make_unique<Region>();
};

}  // namespace ref5d
