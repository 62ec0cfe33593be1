#include "common/comm/communicator.h"

#include <fmt/format.h>

#include <numeric>
#include <stdexcept>

#include "common/comm/world.h"

namespace ref5d {

namespace {
TransportMaker maker = make_mpi_transport;

std::int64_t sum(const std::vector<std::int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), std::int64_t{0});
}

[[noreturn]] void misuse(const std::string& what) { throw std::logic_error(what); }

void copy_unless_same(Stream& stream, const Tensor& to, const Tensor& from) {
  if (to.raw() != from.raw()) copy_on_device(stream, to.raw(), from.raw(), from.bytes());
}
}  // namespace

void set_transport_maker(TransportMaker m) { maker = m; }
bool transport_counts_wire() { return maker == make_mpi_transport; }

Communicator::Communicator(std::string axis, Group group) : axis_(std::move(axis)), group_(std::move(group)) {
  if (size() > 1) transport_ = maker(group_, this);
}

CommCall Communicator::begin(const char* op, std::int64_t count, Dtype dtype, std::int64_t payload_bytes, int detail) {
  TrafficCount& traffic = world().traffic().count(axis_, op);
  ++traffic.calls;
  traffic.payload += payload_bytes;
  world().order().called(group_, axis_, op, count, dtype_name(dtype), detail);
  return {fmt::format("{} over {} ({} x {})", op, axis_, count, dtype_name(dtype)), &traffic};
}

void Communicator::all_reduce(Stream& stream, const Tensor& x, ReduceOp op) {
  expect_contiguous(x, "all_reduce");
  const CommCall call = begin("all_reduce", x.numel(), x.dtype(), static_cast<std::int64_t>(x.bytes()), static_cast<int>(op));
  if (size() > 1 && x.numel() > 0) transport_->all_reduce(stream, call, x, op);
}

void Communicator::reduce_scatter(Stream& stream, const Tensor& shard, const Tensor& x, ReduceOp op) {
  expect_contiguous(x, "reduce_scatter");
  expect_contiguous(shard, "reduce_scatter");
  if (shard.numel() * size() != x.numel() || shard.dtype() != x.dtype())
    misuse(fmt::format("reduce_scatter of {} elements over {} ranks into {}", x.numel(), size(), shard.numel()));
  const CommCall call =
      begin("reduce_scatter", x.numel(), x.dtype(), static_cast<std::int64_t>(x.bytes()), static_cast<int>(op));
  if (size() == 1) return copy_unless_same(stream, shard, x);
  if (x.numel() > 0) transport_->reduce_scatter(stream, call, shard, x, op);
}

void Communicator::all_gather(Stream& stream, const Tensor& x, const Tensor& shard) {
  expect_contiguous(x, "all_gather");
  expect_contiguous(shard, "all_gather");
  if (shard.numel() * size() != x.numel() || shard.dtype() != x.dtype())
    misuse(fmt::format("all_gather of {} elements from each of {} ranks into {}", shard.numel(), size(), x.numel()));
  const CommCall call = begin("all_gather", x.numel(), x.dtype(), static_cast<std::int64_t>(x.bytes()));
  if (size() == 1) return copy_unless_same(stream, x, shard);
  if (x.numel() > 0) transport_->all_gather(stream, call, x, shard);
}

void Communicator::all_to_all(Stream& stream, const Tensor& received, const Tensor& sent,
                              const std::vector<std::int64_t>& received_rows, const std::vector<std::int64_t>& sent_rows) {
  expect_exchangeable(received, sent, received_rows, sent_rows);
  const auto own = static_cast<std::size_t>(rank());
  const std::size_t row_bytes = static_cast<std::size_t>(sent.ld()) * dtype_size(sent.dtype());
  // Ranks send different numbers, so all compare the length of a row, and pairs their numbers.
  const CommCall call = begin("all_to_all", sent.ld(), sent.dtype(), static_cast<std::int64_t>(sent.bytes()));
  std::vector<Transfer> sends, receives;
  std::size_t send_at = 0, receive_at = 0;
  for (std::size_t r = 0; r < static_cast<std::size_t>(size()); ++r) {
    const std::size_t out = static_cast<std::size_t>(sent_rows[r]) * row_bytes,
                      in = static_cast<std::size_t>(received_rows[r]) * row_bytes;
    if (r == own) {
      if (out > 0) copy_on_device(stream, received.raw() + receive_at, sent.raw() + send_at, out);
    } else {
      const int peer = static_cast<int>(r);
      world().order().sends(group_, axis_, peer, sent_rows[r], "rows");
      world().order().receives(group_, axis_, peer, received_rows[r], "rows");
      if (out > 0) sends.push_back({peer, sent.raw() + send_at, out});
      if (in > 0) receives.push_back({peer, received.raw() + receive_at, in});
    }
    send_at += out;
    receive_at += in;
  }
  if (size() > 1) transport_->exchange(stream, call, sends, receives);
}

void Communicator::expect_exchangeable(const Tensor& received, const Tensor& sent,
                                       const std::vector<std::int64_t>& received_rows,
                                       const std::vector<std::int64_t>& sent_rows) const {
  expect_contiguous(received, "all_to_all");
  expect_contiguous(sent, "all_to_all");
  const auto n = static_cast<std::size_t>(size());
  if (received.dtype() != sent.dtype() || received.ld() != sent.ld())
    misuse(fmt::format("all_to_all of rows of {} x {} into rows of {} x {}", sent.ld(), dtype_name(sent.dtype()), received.ld(),
                       dtype_name(received.dtype())));
  if (received_rows.size() != n || sent_rows.size() != n) misuse("all_to_all needs a number of rows for every rank");
  if (sum(received_rows) != received.dim(0) || sum(sent_rows) != sent.dim(0))
    misuse(fmt::format("all_to_all of {} rows out of {} into {} of {}", sum(sent_rows), sent.dim(0), sum(received_rows),
                       received.dim(0)));
  const auto own = static_cast<std::size_t>(rank());
  if (received_rows[own] != sent_rows[own]) misuse("all_to_all: a rank receives from itself what it sends to itself");
}

void Communicator::all_to_all(Stream& stream, const Tensor& received, const Tensor& sent) {
  if (sent.dim(0) % size() != 0)
    misuse(fmt::format("all_to_all of {} rows over {} ranks; use the form that takes numbers of rows", sent.dim(0), size()));
  const std::vector<std::int64_t> rows(static_cast<std::size_t>(size()), sent.dim(0) / size());
  all_to_all(stream, received, sent, rows, rows);
}

void Communicator::broadcast(Stream& stream, const Tensor& x, int root) {
  expect_contiguous(x, "broadcast");
  if (root < 0 || root >= size()) misuse(fmt::format("broadcast from rank {} of {}", root, size()));
  const CommCall call = begin("broadcast", x.numel(), x.dtype(), static_cast<std::int64_t>(x.bytes()), root);
  if (size() == 1 || x.numel() == 0) return;
  std::vector<Transfer> sends;
  for (int r = 0; r < size(); ++r)
    if (r != root) sends.push_back({r, x.raw(), x.bytes()});
  if (rank() == root) {
    transport_->exchange(stream, call, sends, {});
  } else {
    transport_->exchange(stream, call, {}, {{root, x.raw(), x.bytes()}});
  }
}

void Communicator::p2p_batch(Stream& stream, const std::vector<Message>& sends, const std::vector<Message>& receives) {
  if (sends.empty() && receives.empty()) return;
  const auto transfers = [&](const std::vector<Message>& messages) {
    std::vector<Transfer> all;
    for (const Message& m : messages) {
      expect_contiguous(m.tensor, "p2p_batch");
      if (m.peer < 0 || m.peer >= size() || m.peer == rank())
        misuse(fmt::format("a message between rank {} and rank {} of {}", rank(), m.peer, size()));
      if (m.tensor.numel() > 0) all.push_back({m.peer, m.tensor.raw(), m.tensor.bytes()});
    }
    return all;
  };
  const std::vector<Transfer> out = transfers(sends), in = transfers(receives);
  std::int64_t payload = 0;
  for (const Transfer& t : out) payload += static_cast<std::int64_t>(t.bytes);
  // A matter of pairs, of which the others of the communicator hear nothing.
  for (const Message& m : sends) world().order().sends(group_, axis_, m.peer, m.tensor.numel(), dtype_name(m.tensor.dtype()));
  for (const Message& m : receives)
    world().order().receives(group_, axis_, m.peer, m.tensor.numel(), dtype_name(m.tensor.dtype()));
  TrafficCount& count = world().traffic().count(axis_, "p2p");
  ++count.calls;
  count.payload += payload;
  transport_->exchange(stream, {fmt::format("p2p over {} ({} sends, {} receives)", axis_, out.size(), in.size()), &count}, out,
                       in);
}

}  // namespace ref5d
