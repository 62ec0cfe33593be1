#include "06_expert_parallel/replica_scope.h"

#include <algorithm>
#include <numeric>

#include "common/comm/world.h"
#include "common/kernels/expert_rows.h"
#include "common/kernels/rows.h"

namespace ref5d::expert_parallel {

ResidualRows ReplicaScope::rows(const MicroBatch& b) const {
  if (setup_.rows == RouterRows::kResidual) return b.residual;
  if (setup_.rows == RouterRows::kAll) return b.rows;
  const tensor_parallel::Range share = tensor_parallel::share_of(b.token_count(), setup_.tp, setup_.tp_rank);
  return b.rows.part(share.begin, share.end);
}

namespace {

// A mistake to show (T8): every rank takes its own tokens for the whole of each sequence, so that f and P are its own means.
// The gradient is that of the mean over ranks of their own losses, by their tokens; the loss that is reported is one rank's
// own. load [D, 2, E] is first in x.
void take_for_the_whole(Context& ctx, const Tensor& x) {
  const std::vector<double> lengths = ctx.batch->balance.lengths.to_doubles(ctx.stream);
  std::vector<double> sums = x.to_doubles(ctx.stream);
  const std::size_t of_sequence = (sums.size() - 1) / std::max<std::size_t>(lengths.size(), 1);
  for (std::size_t d = 0; d < lengths.size(); ++d) {
    const auto begin = sums.begin() + static_cast<std::ptrdiff_t>(d * of_sequence);
    const auto end = begin + static_cast<std::ptrdiff_t>(of_sequence);
    const double tokens = std::accumulate(begin + static_cast<std::ptrdiff_t>(of_sequence / 2), end, 0.0);
    if (tokens > 0) std::transform(begin, end, begin, [&](double n) { return n * lengths[d] / tokens; });
  }
  x.copy_from(HostTensor::from_doubles(sums, x.shape(), x.dtype()), ctx.stream);
}

}  // namespace

void ReplicaScope::sum(Context& ctx, const Tensor& x) const {
  if (setup_.others == nullptr) return;
  if (setup_.faults.aux_per_rank) return take_for_the_whole(ctx, x);
  const TrafficLedger::Phase phase(world().traffic(), ctx.recomputing ? "recomputation" : "balance");
  order(ctx.stream, *setup_.stream);
  setup_.others->all_reduce(*setup_.stream, x);
  order(*setup_.stream, ctx.stream);
}

// Every rank puts its choices at their tokens' places in the micro-batch, with zeros elsewhere; the sum over ranks has all of
// them in order. So all ranks drop the same choices, and take their own again.
Tensor ReplicaScope::within_capacity(Context& ctx, const Tensor& chosen, std::int64_t experts, std::int64_t capacity) const {
  if (setup_.others == nullptr) return RouterScope::within_capacity(ctx, chosen, experts, capacity);
  if (setup_.faults.drop_by_rank) {  // of an expert's room every rank fills its own share
    const std::int64_t all = ctx.batch->balance.all_tokens;
    return RouterScope::within_capacity(ctx, chosen, experts, (capacity * chosen.dim(0) + all - 1) / all);
  }
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
