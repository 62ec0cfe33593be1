// The two ends of the model, cut by vocabulary: each rank has some rows of the embedding and of the head.
#pragma once

#include <memory>

#include "03_tensor_parallel/axis.h"
#include "common/model/ends.h"

namespace ref5d::tensor_parallel {

// Each rank looks up the tokens whose rows it has and leaves zeros for the others; the sum over ranks is the embedding. A
// token's row is on one rank, so nothing is added that does not belong.
class VocabParallelEmbedding : public Embedding {
 public:
  // Takes over `whole`, whose parameters have no storage yet.
  VocabParallelEmbedding(Embedding&& whole, std::shared_ptr<Axis> axis);
  // int32 [T]: the row of this rank's table, -1 where another rank has it.
  [[nodiscard]] Tensor table_rows(Context& ctx) const override;

 private:
  std::shared_ptr<Axis> axis_;
};

// The loss from logits [T, V here] that never meet: of each token's row only three numbers travel, its greatest logit, its sum
// of exponentials and its label's logit.
class VocabParallelHead : public Head {
 public:
  VocabParallelHead(Head&& whole, std::shared_ptr<Axis> axis);
  void loss(Context& ctx, const Tensor& logits, Saved& saved) override;
  [[nodiscard]] Tensor gather_logits(Context& ctx, const Tensor& logits) override;

 private:
  std::int64_t vocab_;
  Range here_;
  std::shared_ptr<Axis> axis_;
};

// The two all-reduces of the loss. logits [T, V here], the entries `here` of `vocab`, become their gradient, (softmax - onehot)
// x scale; loss [T], not multiplied by scale, is the same on all ranks. (common/kernels/cross_entropy_parts.h has the
// formulas.)
void vocab_parallel_cross_entropy(Axis& axis, Context& ctx, const Tensor& logits, const Tensor& loss, const Tensor& labels,
                                  const Range& here, std::int64_t vocab, double scale);

}  // namespace ref5d::tensor_parallel
