// The tiny GPT: embedding, blocks, head. It knows nothing of parallelism: each dimension is applied to it from outside, by
// swapping its parts and the placements of its parameters before storage exists.
//
//   Gpt gpt(config);                      built, without storage
//   tensor_parallel::apply(gpt, …);       cut
//   gpt.materialise(options, stream);     storage allocated and filled
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "common/model/block.h"
#include "common/model/ends.h"

namespace ref5d {

// Units of the model, in forward order: 0 is the embedding, 1..L the blocks, L+1 the head. These are begin..end-1; end = -1
// goes to the last.
struct Units {
  std::int64_t begin = 0, end = -1;
};

// ZeRO-3 gathers a unit's weights before and frees them after. Several hooks nest: those that come first in the list are called
// first before a unit and last after it.
class UnitHooks {
 public:
  virtual ~UnitHooks() = default;
  virtual void before_forward(std::int64_t) {}
  virtual void after_forward(std::int64_t) {}
  virtual void before_backward(std::int64_t) {}
  virtual void after_backward(std::int64_t) {}
  // Before a unit's gradients are added to: right after before_backward, or much later where that work is deferred.
  virtual void before_weight_gradients(std::int64_t) {}
};

class Gpt {
 public:
  explicit Gpt(const GptConfig& config);

  // A pipeline stage, which may be several chunks: parameters of all other units get an empty part. They do not disappear, so
  // every rank names the same parameters in the same order when it loads, gathers or adds up norms. (Those that are here get a
  // segment, which may be the whole dim: other ranks take part when they are gathered. A tied weight whose other end is
  // elsewhere counts half.)
  void keep(const std::vector<Units>& here);

  [[nodiscard]] std::int64_t unit_count() const { return config_.layers + 2; }
  // Whether keep() left the unit here.
  [[nodiscard]] bool has(std::int64_t unit) const;
  // Those that a unit uses: a tied weight is in two.
  [[nodiscard]] std::vector<std::shared_ptr<Parameter>> parameters_of(std::int64_t unit) const;
  // Each parameter once (a tied weight too), in forward order.
  [[nodiscard]] std::vector<Parameter*> parameters() const;
  // What belongs to the model and its checkpoints and is moved by no gradient: routers' correction biases. Optimizer, gradient
  // norm and ZeRO never see them; every rank that has the layer has them whole.
  [[nodiscard]] std::vector<Parameter*> buffers() const;
  // Allocates and fills the storage of one after the other; `filled` is called with each before the next is allocated.
  void materialise(const StorageOptions& options, Stream& stream, const std::function<void(Parameter&)>& filled = {});

  // One micro-batch (ctx.batch) through some units. input [R, H] is what the unit before them made, unused by the embedding.
  // Returns the residual stream [R, H]; the head adds the loss to ctx.loss_sum instead, and the result is undefined.
  // unit_pass.h has both passes a phase at a time.
  Tensor forward(Context& ctx, const Tensor& input, Saved& saved, Units units = {});
  // doutput: the gradient of forward's result (unused by the head). Returns that of input (undefined from the embedding).
  Tensor backward(Context& ctx, const Tensor& doutput, Saved& saved, Units units = {});
  // Logits [T, V] of the micro-batch; keeps nothing. Of some units, those without the head: the residual stream after them.
  [[nodiscard]] Tensor logits(Context& ctx, const Tensor& input = {}, Units units = {});

  [[nodiscard]] const GptConfig& config() const { return config_; }
  std::unique_ptr<Embedding> embedding;
  std::vector<std::unique_ptr<Block>> blocks;
  std::unique_ptr<Head> head;
  std::vector<UnitHooks*> hooks;  // not owned

 private:
  GptConfig config_;
  std::vector<Units> here_ = {Units()};
};

}  // namespace ref5d
