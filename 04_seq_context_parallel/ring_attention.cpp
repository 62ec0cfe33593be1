#include "04_seq_context_parallel/ring_attention.h"

#include "common/comm/world.h"
#include "common/kernels/attention_merge.h"
#include "common/kernels/elementwise.h"

namespace ref5d::context_parallel {

std::size_t RingAttention::source(int hop) const {
  const int n = axis_->ring().size();
  return static_cast<std::size_t>((axis_->ring().rank() - hop + n) % n);
}

RingAttention::Pass RingAttention::pass_on(Context& ctx, const KeyValues& mine, std::int64_t rows, const char* phase) {
  Communicator& ring = axis_->ring();
  const int n = ring.size(), next = (ring.rank() + 1) % n, before = (ring.rank() + n - 1) % n;
  const auto place = [&](const Tensor& like) {
    return Tensor::empty({rows, like.dim(1)}, like.dtype(), MemoryCategory::kCommunication, ctx.stream);
  };
  const KeyValues theirs{place(mine.k), place(mine.v)};
  const TrafficLedger::Phase scope(world().traffic(), phase);
  order(ctx.stream, axis_->stream());
  ring.p2p_batch(axis_->stream(), {{mine.k, next}, {mine.v, next}}, {{theirs.k, before}, {theirs.v, before}});
  auto done = std::make_shared<Event>();
  done->record(axis_->stream());
  if (!axis_->options().overlap) wait(ctx.stream, *done);
  return {theirs, mine, done};
}

KeyValues RingAttention::arrived(Context& ctx, const Pass& pass) {
  wait(ctx.stream, *pass.done);
  return pass.arriving;
}

namespace {
Tensor copy_of(Context& ctx, const Tensor& x) {
  Tensor copy = Tensor::empty(x.shape(), x.dtype(), MemoryCategory::kActivations, ctx.stream);
  copy_on_device(ctx.stream, copy.raw(), x.raw(), x.bytes());
  return copy;
}
}  // namespace

Tensor RingAttention::forward(Context& ctx, const Tensor& q, const Tensor& k, const Tensor& v, const HeadMap& heads,
                              Saved& saved) {
  const AttentionPlan* plan = plan_of(ctx);
  if (plan == nullptr) return local_.forward(ctx, q, k, v, heads, saved);
  const int hops = axis_->ring().size();
  const AttentionShape shape = shape_of(ctx, q, k, heads);
  const Shape statistics{shape.batch, shape.heads, shape.q_len};
  // On a ring of one nothing is merged, so the output is rounded once, by the kernel.
  const Tensor sum = hops == 1 ? ctx.activation(q.shape()) : ctx.statistic(q.shape()), lse = ctx.statistic(statistics);
  std::vector<Tensor> own_lse;  // of each hop: a mistake to show
  KeyValues here = hops == 1 ? KeyValues{k, v} : KeyValues{contiguous(ctx, k), contiguous(ctx, v)};
  Pass next, late;
  for (int hop = 0; hop < hops; ++hop) {
    const KeyBlock& block = plan->blocks[source(hop)];
    if (hop + 1 < hops)
      next =
          pass_on(ctx, here, shape.batch * plan->blocks[source(hop + 1)].length, ctx.recomputing ? "recomputation" : "forward");
    if (hop == 0) {
      attend(ctx, block, heads, sum, lse, q, here);
      if (axis_->faults().own_lse) own_lse.push_back(copy_of(ctx, lse));
    } else if (block.visible_pairs > 0) {
      const Tensor part = ctx.statistic(q.shape()), part_lse = ctx.statistic(statistics);
      attend(ctx, block, heads, part, part_lse, q, here);
      attention_merge(ctx.stream, shape, sum, lse, part, part_lse, axis_->faults().merge_without_maximum);
      if (axis_->faults().own_lse) own_lse.push_back(part_lse);
    } else if (axis_->faults().own_lse) {
      own_lse.emplace_back();
    }
    if (hop + 1 == hops) break;
    if (axis_->faults().early_start) {  // the next hop does not wait, and this one for what came before it
      if (hop > 0) (void)arrived(ctx, late);
      late = next;
      here = next.arriving;
    } else {
      here = arrived(ctx, next);
    }
  }
  if (late.done) (void)arrived(ctx, late);
  Tensor o = sum;
  if (sum.dtype() != q.dtype()) {
    o = ctx.activation(q.shape());
    convert(ctx.stream, o, sum);
  }
  for (const auto& [tag, tensor] : {std::pair{"ring.q", q}, {"ring.k", k}, {"ring.v", v}, {"ring.o", o}, {"ring.lse", lse}})
    saved.push(tag, tensor);
  if (axis_->faults().own_lse) saved.push("ring.own_lse", own_lse);
  return o;
}

void RingAttention::backward(Context& ctx, const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& dout,
                             const HeadMap& heads, Saved& saved) {
  const AttentionPlan& plan = *plan_of(ctx);
  std::vector<Tensor> own_lse;
  if (axis_->faults().own_lse) own_lse = saved.pop<std::vector<Tensor>>("ring.own_lse");
  const Tensor lse = saved.pop("ring.lse"), o = saved.pop("ring.o");
  const Tensor v = saved.pop("ring.v"), k = saved.pop("ring.k"), q = saved.pop("ring.q");
  const Tensor delta = make_delta(ctx, heads, dout, o, q, k);
  const int hops = axis_->ring().size();
  if (hops == 1) return attend_backward(ctx, plan.blocks[0], heads, dq, {dk, dv}, dout, q, {k, v}, lse, delta, false);

  const auto rows_of = [&](int hop) { return ctx.batch->batch * plan.blocks[source(hop)].length; };
  const Tensor dq_sum = zero_sum(ctx, q.dim(0), q.dim(1), q.dtype());
  KeyValues here{contiguous(ctx, k), contiguous(ctx, v)}, home;
  Pass next, gradients;  // of the keys that are here: what the ranks before have added up
  for (int hop = 0; hop < hops; ++hop) {
    const KeyBlock& block = plan.blocks[source(hop)];
    if (hop + 1 < hops) next = pass_on(ctx, here, rows_of(hop + 1), "backward");
    const KeyValues own{zero_sum(ctx, rows_of(hop), k.dim(1), k.dtype()), zero_sum(ctx, rows_of(hop), k.dim(1), k.dtype())};
    const Tensor& lse_here = own_lse.empty() ? lse : own_lse[static_cast<std::size_t>(hop)];
    if (block.visible_pairs > 0) attend_backward(ctx, block, heads, dq_sum, own, dout, q, here, lse_here, delta, true);
    if (gradients.done) {
      const KeyValues before = arrived(ctx, gradients);
      add(ctx.stream, own.k, own.k, before.k);
      add(ctx.stream, own.v, own.v, before.v);
    }
    if (hop == 0) {
      home = own;
    } else {
      gradients = pass_on(ctx, own, rows_of(hop + 1), "backward");  // after the last hop those of this rank's keys arrive
    }
    if (hop + 1 < hops) here = arrived(ctx, next);
  }
  const KeyValues others = arrived(ctx, gradients);
  add(ctx.stream, home.k, home.k, others.k);
  add(ctx.stream, home.v, home.v, others.v);
  round_into(ctx, dq, dq_sum);
  round_into(ctx, dk, home.k);
  round_into(ctx, dv, home.v);
}

}  // namespace ref5d::context_parallel
