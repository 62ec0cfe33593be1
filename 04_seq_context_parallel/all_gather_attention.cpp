#include "04_seq_context_parallel/all_gather_attention.h"

#include "common/kernels/elementwise.h"
#include "common/kernels/rows.h"

namespace ref5d::context_parallel {

std::int64_t AllGatherAttention::message_rows(const Context& ctx) const {
  return ctx.batch->batch * axis_->layout_of_group().longest();
}

Tensor AllGatherAttention::gather(Context& ctx, const Tensor& here, const char* phase) {
  const AttentionPlan& plan = *plan_of(ctx);
  const std::int64_t rows = message_rows(ctx), columns = here.dim(1), all = rows * axis_->group_size();
  const auto buffer = [&](std::int64_t n) {
    return Tensor::empty({n, columns}, here.dtype(), MemoryCategory::kCommunication, ctx.stream);
  };
  const bool padded = here.dim(0) < rows;  // with rows that nothing reads
  const Tensor shard =
      padded ? Tensor::zeros({rows, columns}, here.dtype(), MemoryCategory::kCommunication, ctx.stream) : contiguous(ctx, here);
  if (padded) copy_matrix(ctx.stream, shard.rows(0, here.dim(0)), here);
  const Tensor by_rank = buffer(all);
  axis_->communicate(ctx, phase, [&](Stream& stream) { axis_->group().all_gather(stream, by_rank, shard); });
  Tensor sequence = buffer(plan.to_sequence.dim(0));
  take_rows(ctx.stream, sequence, by_rank, plan.to_sequence);
  return sequence;
}

void AllGatherAttention::reduce_scatter(Context& ctx, const Tensor& here, const Tensor& x) {
  const AttentionPlan& plan = *plan_of(ctx);
  const auto buffer = [&](std::int64_t n) {
    return Tensor::empty({n, x.dim(1)}, x.dtype(), MemoryCategory::kCommunication, ctx.stream);
  };
  const Tensor by_rank = buffer(plan.to_ranks.dim(0)), shard = buffer(message_rows(ctx));
  take_rows(ctx.stream, by_rank, x, plan.to_ranks);
  axis_->communicate(ctx, "backward", [&](Stream& stream) { axis_->group().reduce_scatter(stream, shard, by_rank); });
  round_into(ctx, here, shard.rows(0, here.dim(0)));
}

Tensor AllGatherAttention::forward(Context& ctx, const Tensor& q, const Tensor& k, const Tensor& v, const HeadMap& heads,
                                   Saved& saved) {
  const AttentionPlan* plan = plan_of(ctx);
  if (plan == nullptr) return local_.forward(ctx, q, k, v, heads, saved);
  const KeyValues all{gather(ctx, k, forward_phase(ctx)), gather(ctx, v, forward_phase(ctx))};
  const AttentionShape shape = shape_of(ctx, q, all.k, heads);
  Tensor o = ctx.activation(q.shape());
  const Tensor lse = ctx.statistic({shape.batch, shape.heads, shape.q_len});
  attend(ctx, plan->blocks[0], heads, o, lse, q, all);
  for (const auto& [tag, tensor] :
       {std::pair{"gather.q", q}, {"gather.k", k}, {"gather.v", v}, {"gather.o", o}, {"gather.lse", lse}})
    saved.push(tag, tensor);
  return o;
}

void AllGatherAttention::backward(Context& ctx, const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& dout,
                                  const HeadMap& heads, Saved& saved) {
  const Tensor lse = saved.pop("gather.lse"), o = saved.pop("gather.o");
  const Tensor v = saved.pop("gather.v"), k = saved.pop("gather.k"), q = saved.pop("gather.q");
  const KeyValues all{gather(ctx, k, "backward"), gather(ctx, v, "backward")};
  const Tensor delta = make_delta(ctx, heads, dout, o, q, all.k);
  const auto share = [&] {
    return Tensor::empty(all.k.shape(), accumulator_of(k.dtype()), MemoryCategory::kActivations, ctx.stream);
  };
  const KeyValues shares{share(), share()};
  attend_backward(ctx, plan_of(ctx)->blocks[0], heads, dq, shares, dout, q, all, lse, delta, false);
  reduce_scatter(ctx, dk, shares.k);
  reduce_scatter(ctx, dv, shares.v);
}

}  // namespace ref5d::context_parallel
