#include "06_expert_parallel/replica_scope.h"

#include "common/comm/world.h"
#include "common/kernels/expert_rows.h"
#include "common/kernels/rows.h"

namespace ref5d::expert_parallel {

ResidualRows ReplicaScope::rows(const MicroBatch& b) const {
  if (setup_.rows == RouterRows::kResidual) return b.residual;
  if (setup_.rows == RouterRows::kAll) return b.rows;
  const Range share = tensor_parallel::share_of(b.token_count(), setup_.tp, setup_.tp_rank);
  return b.rows.part(share.begin, share.end);
}

void ReplicaScope::sum(Context& ctx, const Tensor& x) const {
  if (setup_.others == nullptr || setup_.faults.aux_per_rank) return;
  const TrafficLedger::Phase phase(world().traffic(), ctx.recomputing ? "recomputation" : "balance");
  order(ctx.stream, *setup_.stream);
  setup_.others->all_reduce(*setup_.stream, x);
  order(*setup_.stream, ctx.stream);
}

// Every rank puts its choices at their tokens' places in the micro-batch, with zeros elsewhere; the sum over ranks has all of
// them in order. So all ranks drop the same choices, and take their own again.
Tensor ReplicaScope::within_capacity(Context& ctx, const Tensor& chosen, std::int64_t experts, std::int64_t capacity) const {
  if (setup_.others == nullptr || setup_.faults.drop_by_rank)
    return RouterScope::within_capacity(ctx, chosen, experts, capacity);
  const std::int64_t tokens = ctx.batch->balance.all_tokens, k = chosen.dim(1);
  const Tensor place = rows(*ctx.batch).place, row_of_place = ctx.integers({tokens}), all = ctx.integers({tokens, k});
  invert_order(ctx.stream, row_of_place, place);
  take_rows(ctx.stream, all, chosen, row_of_place);
  {
    const TrafficLedger::Phase phase(world().traffic(), ctx.recomputing ? "recomputation" : "capacity");
    order(ctx.stream, *setup_.stream);
    setup_.others->all_reduce(*setup_.stream, all);
    order(*setup_.stream, ctx.stream);
  }
  Tensor own = ctx.integers(chosen.shape());
  take_rows(ctx.stream, own, RouterScope::within_capacity(ctx, all, experts, capacity), place);
  return own;
}

}  // namespace ref5d::expert_parallel
