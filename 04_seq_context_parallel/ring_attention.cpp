#include "04_seq_context_parallel/ring_attention.h"

#include <utility>
#include <vector>

#include "common/comm/world.h"
#include "common/kernels/attention_merge.h"
#include "common/kernels/elementwise.h"

namespace ref5d::context_parallel {

std::size_t RingAttention::source(int hop) const {
  const int n = axis_->ring_size();
  return static_cast<std::size_t>((axis_->place_on_ring() - hop + n) % n);
}

RingAttention::Pass RingAttention::pass_on(Context& ctx, const KeyValues& mine, std::int64_t rows, const char* phase) {
  const int n = axis_->ring_size(), next = (axis_->place_on_ring() + 1) % n, before = (axis_->place_on_ring() + n - 1) % n;
  const auto place = [&](const Tensor& like) {
    return Tensor::empty({rows, like.dim(1)}, like.dtype(), MemoryCategory::kCommunication, ctx.stream);
  };
  Pass pass{{place(mine.k), place(mine.v)}, mine, std::make_shared<Event>(), std::make_shared<Event>()};
  const TrafficLedger::Phase scope(world().traffic(), phase);
  order(ctx.stream, axis_->stream());
  pass.begun->record(axis_->stream());
  axis_->ring().p2p_batch(axis_->stream(), {{mine.k, next}, {mine.v, next}},
                          {{pass.arriving.k, before}, {pass.arriving.v, before}});
  pass.done->record(axis_->stream());
  if (!axis_->options().overlap) wait(ctx.stream, *pass.done);
  return pass;
}

KeyValues RingAttention::arrived(Context& ctx, Pass& pass) {
  wait(ctx.stream, *pass.done);
  return std::exchange(pass, {}).arriving;
}

Tensor RingAttention::forward(Context& ctx, const Tensor& q, const Tensor& k, const Tensor& v, const HeadMap& heads,
                              Saved& saved) {
  const AttentionPlan* plan = plan_of(ctx);
  if (plan == nullptr) return local_.forward(ctx, q, k, v, heads, saved);
  const int hops = axis_->ring_size();
  const AttentionShape shape = shape_of(ctx, q, k, heads);
  const Shape statistics{shape.batch, shape.heads, shape.q_len};
  // On a ring of one nothing is merged, so the output is rounded once, by the kernel.
  const Tensor sum = hops == 1 ? ctx.activation(q.shape()) : ctx.statistic(q.shape()), lse = ctx.statistic(statistics);
  KeyValues here = hops == 1 ? KeyValues{k, v} : KeyValues{contiguous(ctx, k), contiguous(ctx, v)};
  Pass next;
  std::vector<Pass> late;  // a mistake to show: what a hop has not waited for
  for (int hop = 0; hop < hops; ++hop) {
    const KeyBlock& block = plan->blocks[source(hop)];
    if (hop + 1 < hops) next = pass_on(ctx, here, shape.batch * plan->blocks[source(hop + 1)].length, forward_phase(ctx));
    if (hop == 0) {
      attend(ctx, block, heads, sum, lse, q, here);
    } else if (block.visible_pairs > 0) {
      const Tensor part = ctx.statistic(q.shape()), part_lse = ctx.statistic(statistics);
      attend(ctx, block, heads, part, part_lse, q, here);
      attention_merge(ctx.stream, shape, sum, lse, part, part_lse, axis_->faults().merge_without_maximum);
    }
    if (hop + 1 == hops) break;
    if (axis_->faults().early_start) late.push_back(next), std::swap(next.begun, next.done);
    here = arrived(ctx, next);
  }
  for (Pass& pass : late) (void)arrived(ctx, pass);
  Tensor o = sum;
  if (sum.dtype() != q.dtype()) {
    o = ctx.activation(q.shape());
    convert(ctx.stream, o, sum);
  }
  for (const auto& [tag, tensor] : {std::pair{"ring.q", q}, {"ring.k", k}, {"ring.v", v}, {"ring.o", o}, {"ring.lse", lse}})
    saved.push(tag, tensor);
  return o;
}

Tensor RingAttention::own_lse(Context& ctx, const KeyBlock& block, const HeadMap& heads, const Tensor& q, const KeyValues& kv,
                              const Tensor& like) {
  const Tensor o = ctx.activation(q.shape());
  Tensor lse = ctx.statistic(like.shape());
  attention_forward(ctx.stream, ctx.attention, shape_of(ctx, q, kv.k, heads), block.tokens, o, lse, q, kv.k, kv.v);
  return lse;
}

void RingAttention::backward(Context& ctx, const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& dout,
                             const HeadMap& heads, Saved& saved) {
  const AttentionPlan& plan = *plan_of(ctx);
  const Tensor lse = saved.pop("ring.lse"), o = saved.pop("ring.o");
  const Tensor v = saved.pop("ring.v"), k = saved.pop("ring.k"), q = saved.pop("ring.q");
  const Tensor delta = make_delta(ctx, heads, dout, o, q, k);
  const int hops = axis_->ring_size();
  if (hops == 1) return attend_backward(ctx, plan.blocks[0], heads, dq, {dk, dv}, dout, q, {k, v}, lse, delta, false);

  const auto rows_of = [&](int hop) { return ctx.batch->batch * plan.blocks[source(hop)].length; };
  const Tensor dq_sum = zero_sum(ctx, q.dim(0), q.dim(1), q.dtype());
  KeyValues here{contiguous(ctx, k), contiguous(ctx, v)}, home;
  Pass next, gradients;  // of the keys that are here: what the ranks before have added up
  for (int hop = 0; hop < hops; ++hop) {
    const KeyBlock& block = plan.blocks[source(hop)];
    if (hop + 1 < hops) next = pass_on(ctx, here, rows_of(hop + 1), "backward");
    KeyValues own{zero_sum(ctx, rows_of(hop), k.dim(1), k.dtype()), zero_sum(ctx, rows_of(hop), k.dim(1), k.dtype())};
    const Tensor lse_here = axis_->faults().own_lse ? own_lse(ctx, block, heads, q, here, lse) : lse;
    if (block.visible_pairs > 0) attend_backward(ctx, block, heads, dq_sum, own, dout, q, here, lse_here, delta, true);
    if (hop == 0) {
      home = std::move(own);
    } else {
      if (hop > 1) add_to(ctx, own, arrived(ctx, gradients));
      gradients = pass_on(ctx, own, rows_of(hop + 1), "backward");  // after the last hop those of this rank's keys arrive
    }
    if (hop + 1 < hops) here = arrived(ctx, next);
  }
  add_to(ctx, home, arrived(ctx, gradients));
  round_into(ctx, dq, dq_sum);
  round_into(ctx, dk, home.k);
  round_into(ctx, dv, home.v);
}

}  // namespace ref5d::context_parallel
