#include "04_seq_context_parallel/token_shares.h"

#include <algorithm>
#include <memory>

#include "common/comm/world.h"

namespace ref5d::sequence_parallel {

namespace {

using tensor_parallel::Axis;
using tensor_parallel::Range;
using tensor_parallel::share_of;

// Shares travel in one length, that of the longest. Where the ranks do not divide the rows, the last ones' is one row shorter.
std::int64_t message_rows(const Axis& axis, std::int64_t rows) { return share_of(rows, axis.size(), 0).size(); }

Tensor buffer(Context& ctx, std::int64_t rows, const Tensor& like) {
  return Tensor::empty({rows, like.dim(1)}, like.dtype(), MemoryCategory::kCommunication, ctx.stream);
}

void copy_rows(Context& ctx, const Tensor& to, const Tensor& from) {
  copy_on_device(ctx.stream, to.raw(), from.raw(), from.bytes());
}

// Each rank's share at the beginning of its message, a row that nothing reads after it.
Tensor spread(Axis& axis, Context& ctx, const Tensor& x) {
  const std::int64_t message = message_rows(axis, x.dim(0));
  Tensor messages = Tensor::zeros({message * axis.size(), x.dim(1)}, x.dtype(), MemoryCategory::kCommunication, ctx.stream);
  for (int r = 0; r < axis.size(); ++r) {
    const Range share = share_of(x.dim(0), axis.size(), r);
    copy_rows(ctx, messages.rows(r * message, r * message + share.size()), x.rows(share.begin, share.end));
  }
  return messages;
}

Tensor joined(Axis& axis, Context& ctx, const Tensor& messages, std::int64_t rows) {
  const std::int64_t message = message_rows(axis, rows);
  Tensor x = ctx.activation({rows, messages.dim(1)});
  for (int r = 0; r < axis.size(); ++r) {
    const Range share = share_of(rows, axis.size(), r);
    copy_rows(ctx, x.rows(share.begin, share.end), messages.rows(r * message, r * message + share.size()));
  }
  return x;
}

}  // namespace

PendingTensor begin_all_gather(Axis& axis, Context& ctx, const Tensor& own, std::int64_t rows, const char* phase) {
  const std::int64_t message = message_rows(axis, rows);
  const bool even = message * axis.size() == rows;
  Tensor shard = own;
  if (own.dim(0) < message) {
    shard = Tensor::zeros({message, own.dim(1)}, own.dtype(), MemoryCategory::kCommunication, ctx.stream);
    copy_rows(ctx, shard.rows(0, own.dim(0)), own);
  }
  const Tensor all = even ? ctx.activation({rows, own.dim(1)}) : buffer(ctx, message * axis.size(), own);
  const TrafficLedger::Phase scope(world().traffic(), phase);
  order(ctx.stream, axis.stream());
  axis.communicator().all_gather(axis.stream(), all, shard);
  auto done = std::make_shared<Event>();
  done->record(axis.stream());
  return [&axis, shard, all, rows, even, done](Context& later) {
    wait(later.stream, *done);
    return even ? all : joined(axis, later, all, rows);
  };
}

PendingTensor begin_reduce_scatter(Axis& axis, Context& ctx, const Tensor& x, const char* phase) {
  const std::int64_t message = message_rows(axis, x.dim(0)), own = share_of(x.dim(0), axis.size(), axis.rank()).size();
  const Tensor messages = message * axis.size() == x.dim(0) ? x : spread(axis, ctx, x);
  const Tensor shard = ctx.activation({message, x.dim(1)});
  const TrafficLedger::Phase scope(world().traffic(), phase);
  order(ctx.stream, axis.stream());
  axis.communicator().reduce_scatter(axis.stream(), shard, messages);
  auto done = std::make_shared<Event>();
  done->record(axis.stream());
  return [messages, shard, own, done](Context& later) {
    wait(later.stream, *done);
    return shard.rows(0, own);
  };
}

std::vector<Segment> rows_of_shares(const Axis& axis, std::int64_t samples, std::int64_t micro_batch,
                                    std::int64_t tokens_per_sequence) {
  std::vector<Segment> rows;
  for (std::int64_t first = 0; first < samples; first += micro_batch) {
    const std::int64_t tokens = std::min(micro_batch, samples - first) * tokens_per_sequence;
    const Range share = share_of(tokens, axis.size(), axis.rank());
    rows.push_back({first * tokens_per_sequence + share.begin, first * tokens_per_sequence + share.end});
  }
  return rows;
}

}  // namespace ref5d::sequence_parallel
