#include "03_tensor_parallel/conjugates.h"

#include <memory>

#include "common/comm/world.h"
#include "common/kernels/elementwise.h"

namespace ref5d::tensor_parallel {

PendingTensor begin_all_reduce(Axis& axis, Context& ctx, const Tensor& x, const char* phase) {
  const TrafficLedger::Phase scope(world().traffic(), phase);
  order(ctx.stream, axis.stream());
  axis.communicator().all_reduce(axis.stream(), x);
  auto done = std::make_shared<Event>();
  done->record(axis.stream());
  return [x, done](Context& later) {
    wait(later.stream, *done);
    return x;
  };
}

Tensor all_reduce(Axis& axis, Context& ctx, const Tensor& x, const char* phase) {
  return begin_all_reduce(axis, ctx, x, phase)(ctx);
}

Tensor all_gather_columns(Axis& axis, Context& ctx, const Tensor& own, std::int64_t columns, const char* phase) {
  const std::int64_t rows = own.dim(0), widest = share_of(columns, axis.size(), 0).size();
  Tensor padded = own;
  if (own.dim(1) < widest) {
    padded = Tensor::zeros({rows, widest}, own.dtype(), MemoryCategory::kCommunication, ctx.stream);
    copy_matrix(ctx.stream, padded.columns(0, own.dim(1)), own);
  }
  const Tensor all = Tensor::empty({axis.size() * rows, widest}, own.dtype(), MemoryCategory::kCommunication, ctx.stream);
  {
    const TrafficLedger::Phase scope(world().traffic(), phase);
    order(ctx.stream, axis.stream());
    axis.communicator().all_gather(axis.stream(), all, padded);
    order(axis.stream(), ctx.stream);
  }
  Tensor joined = ctx.activation({rows, columns});
  for (int r = 0; r < axis.size(); ++r) {
    const Range range = share_of(columns, axis.size(), r);
    copy_matrix(ctx.stream, joined.columns(range.begin, range.end),
                all.rows(r * rows, (r + 1) * rows).columns(0, range.size()));
  }
  return joined;
}

Tensor own_columns(Axis& axis, Context& ctx, const Tensor& x) {
  const Range range = share_of(x.dim(1), axis.size(), axis.rank());
  Tensor own = ctx.activation({x.dim(0), range.size()});
  copy_matrix(ctx.stream, own, x.columns(range.begin, range.end));
  return own;
}

}  // namespace ref5d::tensor_parallel
