// Communication over MPI: collectives from non-blocking messages. Slices are exchanged, added in rank order by one kernel, and
// gathered: one order of additions whatever the timing, bf16 included, and exactly the bytes of the ring algorithms.
#include <memory>
#include <stdexcept>

#include "common/comm/mpi_wait.h"
#include "common/comm/reduce.h"
#include "common/comm/staging.h"
#include "common/comm/transport.h"
#include "common/comm/world.h"
#include "common/device/polled.h"

namespace ref5d {

namespace {

// The bounds of rank r's slice of n elements.
std::int64_t slice_begin(std::int64_t n, int r, int size) { return n * r / size; }

// Host memory on its way from or to a peer.
struct Wire {
  int peer;  // of the world
  std::byte* data;
  std::size_t bytes;
};

class MpiTransport : public Transport {
 public:
  MpiTransport(const Group& group, const void* key) : group_(group), key_(key) {}

  void all_reduce(Stream& stream, const CommCall& call, const Tensor& x, ReduceOp op) override {
    const Tensor flat = x.view({x.numel()});
    const std::int64_t n = x.numel();
    const int size = group_.size();
    const auto slice = [&](int r) { return flat.rows(slice_begin(n, r, size), slice_begin(n, r + 1, size)); };
    const Tensor own = slice(group_.rank);
    sum_of_slices(stream, call, own, own, slice, op);
    gather_slices(stream, call, own, slice);
  }

  void reduce_scatter(Stream& stream, const CommCall& call, const Tensor& shard, const Tensor& x, ReduceOp op) override {
    const Tensor flat = x.view({x.numel()});
    const std::int64_t n = shard.numel();
    const auto slice = [&](int r) { return flat.rows(r * n, (r + 1) * n); };
    sum_of_slices(stream, call, shard.view({n}), slice(group_.rank), slice, op);
  }

  void all_gather(Stream& stream, const CommCall& call, const Tensor& x, const Tensor& shard) override {
    const Tensor flat = x.view({x.numel()});
    const std::int64_t n = shard.numel();
    const auto slice = [&](int r) { return flat.rows(r * n, (r + 1) * n); };
    const Tensor own = slice(group_.rank);
    if (own.raw() != shard.raw()) copy_on_device(stream, own.raw(), shard.raw(), shard.bytes());
    gather_slices(stream, call, shard.view({n}), slice);
  }

  void exchange(Stream& stream, const CommCall& call, const std::vector<Transfer>& sends,
                const std::vector<Transfer>& receives) override {
    const Staging staging(stream);
    std::vector<Wire> out, in;
    for (const Transfer& t : sends) out.push_back({world_rank(t.peer), staging.to_send(t.data, t.bytes), t.bytes});
    for (const Transfer& t : receives) in.push_back({world_rank(t.peer), staging.to_receive(t.data, t.bytes), t.bytes});
    auto messages = std::make_shared<mpi::Messages>();
    PolledWork work{.name = call.name, .start = {}, .poll = {}, .order_key = key_, .timeout = world().timeout()};
    for (const Wire& w : out) work.bytes += static_cast<std::int64_t>(w.bytes);
    work.start = [messages, out, in, tag = group_.tag, count = call.count] {
      for (const Wire& w : in) messages->receive(w.data, w.bytes, w.peer, tag);
      for (const Wire& w : out) {
        messages->send(w.data, w.bytes, w.peer, tag);
        count_sent(*count, w);
      }
    };
    work.poll = [messages, name = call.name] {
      world().order().compare();
      return messages->complete(name);
    };
    enqueue_polled(stream, std::move(work));
    staging.finish();
  }

 private:
  [[nodiscard]] int world_rank(int peer) const { return group_.ranks[static_cast<std::size_t>(peer)]; }

  static void count_sent(TrafficCount& count, const Wire& w) {
    count.wire += static_cast<std::int64_t>(w.bytes);
    if (world().node(w.peer) != world().node(world().rank())) count.between_nodes += static_cast<std::int64_t>(w.bytes);
  }

  // out = the sum over the ranks of own, this rank's slice; slice(r) is what this rank has for rank r.
  template <typename Slice>
  void sum_of_slices(Stream& stream, const CommCall& call, const Tensor& out, const Tensor& own, const Slice& slice,
                     ReduceOp op) {
    const Tensor received =
        Tensor::empty({group_.size() - 1, own.numel()}, own.dtype(), MemoryCategory::kCommunication, stream);
    std::vector<Transfer> sends, receives;
    for (int r = 0, row = 0; r < group_.size(); ++r) {
      if (r == group_.rank) continue;
      const Tensor part = slice(r);
      if (part.bytes() > 0) sends.push_back({r, part.raw(), part.bytes()});
      if (own.bytes() > 0) receives.push_back({r, received.rows(row, row + 1).raw(), own.bytes()});
      ++row;
    }
    exchange(stream, call, sends, receives);
    reduce_in_rank_order(stream, out, own, received, group_.rank, op);
  }

  // Every rank gets everyone's slice(r), of which own is this rank's.
  template <typename Slice>
  void gather_slices(Stream& stream, const CommCall& call, const Tensor& own, const Slice& slice) {
    std::vector<Transfer> sends, receives;
    for (int r = 0; r < group_.size(); ++r) {
      if (r == group_.rank) continue;
      const Tensor part = slice(r);
      if (own.bytes() > 0) sends.push_back({r, own.raw(), own.bytes()});
      if (part.bytes() > 0) receives.push_back({r, part.raw(), part.bytes()});
    }
    exchange(stream, call, sends, receives);
  }

  Group group_;
  const void* key_;
};

}  // namespace

std::unique_ptr<Transport> make_mpi_transport(const Group& group, const void* key) {
  return std::make_unique<MpiTransport>(group, key);
}

}  // namespace ref5d
