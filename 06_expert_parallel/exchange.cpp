#include "06_expert_parallel/exchange.h"

#include <numeric>

#include "common/comm/world.h"

namespace ref5d::expert_parallel {

std::int64_t RowCounts::received_rows() const { return std::accumulate(received.begin(), received.end(), std::int64_t{0}); }

Exchange::Exchange(Context& ctx, Communicator& ranks, Stream& stream, const Tensor& sent, const RowCounts& counts,
                   const char* phase)
    : sent_(sent),
      received_(Tensor::empty({counts.received_rows(), sent.dim(1)}, sent.dtype(), MemoryCategory::kActivations, ctx.stream)) {
  const TrafficLedger::Phase scope(world().traffic(), phase);
  order(ctx.stream, stream);
  ranks.all_to_all(stream, received_, sent_, counts.received, counts.sent);
  done_.record(stream);
}

Tensor Exchange::finish(Context& ctx) {
  wait(ctx.stream, done_);
  sent_ = {};
  return std::move(received_);
}

}  // namespace ref5d::expert_parallel
