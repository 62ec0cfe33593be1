#include "03_tensor_parallel/vocab_parallel.h"

#include "03_tensor_parallel/conjugates.h"
#include "03_tensor_parallel/parallel_linear.h"
#include "common/comm/world.h"
#include "common/kernels/cross_entropy_parts.h"
#include "common/kernels/elementwise.h"
#include "common/kernels/embedding.h"

namespace ref5d::tensor_parallel {

VocabParallelEmbedding::VocabParallelEmbedding(Embedding&& whole, std::shared_ptr<Axis> axis)
    : Embedding(std::move(whole)), axis_(std::move(axis)) {}

Tensor VocabParallelEmbedding::table_rows(Context& ctx) const {
  const Range here = share_of(tokens->global_shape[0], axis_->size(), axis_->rank());
  Tensor rows = Tensor::empty(ctx.batch->tokens.shape(), Dtype::kInt32, MemoryCategory::kWorkspace, ctx.stream);
  part_rows(ctx.stream, rows, ctx.batch->tokens, here.begin, here.size(), axis_->faults().clamp_without_mask);
  return rows;
}

VocabParallelHead::VocabParallelHead(Head&& whole, std::shared_ptr<Axis> axis)
    : Head(std::move(whole)), vocab_(projection->weight->global_shape[0]), axis_(std::move(axis)) {
  here_ = share_of(vocab_, axis_->size(), axis_->rank());
}

namespace {

struct Entries {
  Tensor logits;
  std::int64_t vocab;  // those of all ranks
};
// What takes part in the softmax: this rank's logits. A mistake to show: and on the last rank a logit of 0 for every entry that
// its share lacks of the largest.
Entries entries_of_softmax(const Axis& axis, Context& ctx, const Tensor& logits, std::int64_t vocab) {
  const std::int64_t missing = share_of(vocab, axis.size(), 0).size() - logits.dim(1);
  if (!axis.faults().padding_leaks || axis.rank() + 1 < axis.size() || missing == 0) return {logits, vocab};
  const Shape padded{logits.dim(0), logits.dim(1) + missing};
  Entries all{Tensor::zeros(padded, logits.dtype(), MemoryCategory::kActivations, ctx.stream), vocab + missing};
  copy_matrix(ctx.stream, all.logits.columns(0, logits.dim(1)), logits);
  return all;
}

}  // namespace

void vocab_parallel_cross_entropy(Axis& axis, Context& ctx, const Tensor& logits, const Tensor& loss, const Tensor& labels,
                                  const Range& here, std::int64_t vocab, double scale) {
  const TrafficLedger::Phase scope(world().traffic(), "cross-entropy");
  const auto over_ranks = [&](const Tensor& x, ReduceOp op) {
    order(ctx.stream, axis.stream());
    axis.communicator().all_reduce(axis.stream(), x, op);
    order(axis.stream(), ctx.stream);
  };
  const Entries entries = entries_of_softmax(axis, ctx, logits, vocab);
  const Tensor greatest = ctx.statistic({logits.dim(0)});
  cross_entropy_part_max(ctx.stream, greatest, entries.logits);
  if (!axis.faults().own_maximum) over_ranks(greatest, ReduceOp::kMax);
  // Relative to the greatest logit of all ranks no exponential overflows, and one of them is 1.
  const Tensor sums = ctx.statistic({2, logits.dim(0)});
  cross_entropy_part_sums(ctx.stream, sums, entries.logits, greatest, labels, here.begin, entries.vocab);
  over_ranks(sums, ReduceOp::kSum);
  cross_entropy_from_parts(ctx.stream, logits, loss, greatest, sums, labels, here.begin, vocab, scale);
}

void VocabParallelHead::loss(Context& ctx, const Tensor& logits, Saved& saved) {
  const MicroBatch& b = *ctx.batch;
  const Tensor per_token = ctx.statistic({b.token_count()});
  vocab_parallel_cross_entropy(*axis_, ctx, logits, per_token, b.labels, here_, vocab_, b.loss_scale);
  saved.push("head.dlogits", logits);
  add_loss(ctx.stream, ctx.loss_sum, per_token);
}

Tensor VocabParallelHead::gather_logits(Context& ctx, const Tensor& logits) {
  return all_gather_columns(*axis_, ctx, logits, vocab_, "sample");
}

}  // namespace ref5d::tensor_parallel
