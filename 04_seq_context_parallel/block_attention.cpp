#include "04_seq_context_parallel/block_attention.h"

#include <cmath>

#include "common/device/device.h"
#include "common/kernels/elementwise.h"

namespace ref5d::context_parallel {

AttentionShape shape_of(const Context& ctx, const Tensor& q, const Tensor& k, const HeadMap& heads) {
  const std::int64_t batch = ctx.batch->batch, head_dim = heads.head_dim;
  return {batch,
          q.dim(0) / batch,
          k.dim(0) / batch,
          q.dim(1) / head_dim,
          k.dim(1) / head_dim,
          head_dim,
          1.0 / std::sqrt(static_cast<double>(head_dim)),
          heads.group,
          heads.offset};
}

void attend(Context& ctx, const KeyBlock& block, const HeadMap& heads, const Tensor& o, const Tensor& lse, const Tensor& q,
            const KeyValues& kv) {
  const AttentionShape shape = shape_of(ctx, q, kv.k, heads);
  attention_forward(ctx.stream, ctx.attention, shape, block.tokens, o, lse, q, kv.k, kv.v);
  device().flops().add(FlopsKind::kAttention, attention_forward_flops(block.visible_pairs, shape.heads, shape.head_dim));
}

void attend_backward(Context& ctx, const KeyBlock& block, const HeadMap& heads, const Tensor& dq, const KeyValues& dkv,
                     const Tensor& dout, const Tensor& q, const KeyValues& kv, const Tensor& lse, const Tensor& delta,
                     bool accumulate) {
  const AttentionShape shape = shape_of(ctx, q, kv.k, heads);
  attention_backward(ctx.stream, ctx.attention, shape, block.tokens, dq, dkv.k, dkv.v, dout, q, kv.k, kv.v, lse, delta,
                     accumulate);
  device().flops().add(FlopsKind::kAttention, attention_backward_flops(block.visible_pairs, shape.heads, shape.head_dim));
}

Tensor make_delta(Context& ctx, const HeadMap& heads, const Tensor& dout, const Tensor& o, const Tensor& q, const Tensor& k) {
  const AttentionShape shape = shape_of(ctx, q, k, heads);
  Tensor delta = ctx.statistic({shape.batch, shape.heads, shape.q_len});
  attention_delta(ctx.stream, shape, delta, dout, o);
  return delta;
}

Tensor zero_sum(Context& ctx, std::int64_t rows, std::int64_t columns, Dtype dtype) {
  return Tensor::zeros({rows, columns}, accumulator_of(dtype), MemoryCategory::kActivations, ctx.stream);
}

void add_to(Context& ctx, const KeyValues& sum, const KeyValues& term) {
  add(ctx.stream, sum.k, sum.k, term.k);
  add(ctx.stream, sum.v, sum.v, term.v);
}

void round_into(Context& ctx, const Tensor& to, const Tensor& from) {
  if (to.dtype() == from.dtype()) return copy_matrix(ctx.stream, to, from);
  if (to.contiguous()) return convert(ctx.stream, to, from);
  const Tensor narrow = Tensor::empty(from.shape(), to.dtype(), MemoryCategory::kWorkspace, ctx.stream);
  convert(ctx.stream, narrow, from);
  copy_matrix(ctx.stream, to, narrow);
}

Tensor contiguous(Context& ctx, const Tensor& x) {
  if (x.contiguous()) return x;
  Tensor copy = Tensor::empty(x.shape(), x.dtype(), MemoryCategory::kCommunication, ctx.stream);
  copy_matrix(ctx.stream, copy, x);
  return copy;
}

}  // namespace ref5d::context_parallel
