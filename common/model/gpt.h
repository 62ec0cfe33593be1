// The tiny GPT: embedding, blocks, head. It knows nothing of parallelism: each dimension is applied to it from outside, by
// swapping its parts and the placements of its parameters before storage exists.
//
//   Gpt gpt(config);                      built, without storage
//   tensor_parallel::apply(gpt, …);       cut
//   gpt.materialise(options, stream);     storage allocated and filled
#pragma once

#include <memory>
#include <vector>

#include "common/model/block.h"
#include "common/model/ends.h"

namespace ref5d {

// Units of the model, in forward order: 0 is the embedding, 1..L the blocks, L+1 the head (numbers are global, whatever is
// here). ZeRO-3 gathers a unit's weights before and frees them after. Several hooks nest: those that come first in the list are
// called first before a unit and last after it.
class UnitHooks {
 public:
  virtual ~UnitHooks() = default;
  virtual void before_forward(std::int64_t) {}
  virtual void after_forward(std::int64_t) {}
  virtual void before_backward(std::int64_t) {}
  virtual void after_backward(std::int64_t) {}
};

class Gpt {
 public:
  explicit Gpt(const GptConfig& config);

  // Drops everything but layers begin..end-1, and the ends that are not wanted: a pipeline stage, or a chunk of one.
  void keep(std::int64_t begin, std::int64_t end, bool embedding, bool head);

  // Each parameter once (a tied weight too), in forward order.
  [[nodiscard]] std::vector<Parameter*> parameters() const;
  void materialise(const StorageOptions& options, Stream& stream);

  // One micro-batch (ctx.batch) through what is here. input [R, H] is the previous stage's output, unused where the embedding
  // is here. Returns the residual stream [R, H]; with the head here the loss is added to ctx.loss_sum instead and the result is
  // undefined.
  Tensor forward(Context& ctx, const Tensor& input, Saved& saved);
  // doutput: the gradient of forward's result (unused where the head is here). Returns that of input (undefined where the
  // embedding is here).
  Tensor backward(Context& ctx, const Tensor& doutput, Saved& saved);
  // Logits [T, V] of the micro-batch; keeps nothing.
  [[nodiscard]] Tensor logits(Context& ctx);

  [[nodiscard]] const GptConfig& config() const { return config_; }
  std::unique_ptr<Embedding> embedding;  // null where it is not here
  std::vector<std::unique_ptr<Block>> blocks;
  std::unique_ptr<Head> head;
  std::vector<UnitHooks*> hooks;  // not owned

 private:
  GptConfig config_;
};

}  // namespace ref5d
