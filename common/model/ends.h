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
  virtual ~Embedding() = default;

  // -> the residual stream [R, H]: the tokens' rows as they leave the region, plus the positions' if they are learned, then
  // dropout.
  [[nodiscard]] virtual Tensor forward(Context& ctx);
  virtual void backward(Context& ctx, const Tensor& dx);
  [[nodiscard]] std::vector<std::shared_ptr<Parameter>> parameters() const;

  std::shared_ptr<Parameter> tokens;     // [V, H]
  std::shared_ptr<Parameter> positions;  // [S, H]; null with RoPE
  std::unique_ptr<Region> region = std::make_unique<Region>();
};

class Head {
 public:
  // The projection's weight is `tied` if given (the embedding's), else its own.
  Head(const GptConfig& config, std::shared_ptr<Parameter> tied);
  virtual ~Head() = default;

  // The final norm and the projection: x [R, H] -> logits [T, V].
  [[nodiscard]] virtual Tensor logits(Context& ctx, const Tensor& x, Saved& saved);
  // Adds the micro-batch's loss to ctx.loss_sum and keeps the gradient of the logits.
  virtual void loss(Context& ctx, const Tensor& logits, Saved& saved);
  // -> the gradient of x [R, H].
  [[nodiscard]] virtual Tensor backward(Context& ctx, Saved& saved);
  [[nodiscard]] std::vector<std::shared_ptr<Parameter>> parameters() const;

  std::unique_ptr<Norm> norm;
  std::unique_ptr<Linear> projection;
  std::unique_ptr<Region> region = std::make_unique<Region>();
};

}  // namespace ref5d
