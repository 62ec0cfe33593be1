// Communication over NCCL, which moves bytes between GPUs without the host. What it sends cannot be counted at the sends, so
// the ledger has the ring algorithms' closed forms. It adds in an order of its own, bf16 in bf16.
#include "common/comm/cuda/nccl_transport.h"

#include <nccl.h>

#include <cstring>
#include <stdexcept>

#include "common/comm/cuda/nccl_watch.h"
#include "common/comm/world.h"
#include "common/device/cuda/cuda_stream.h"
#include "common/device/error.h"

namespace ref5d {

namespace {

void check(ncclResult_t status, const char* what) {
  if (status != ncclSuccess) throw RunError(std::string(what) + " failed: " + ncclGetErrorString(status));
}

ncclDataType_t nccl_type(Dtype d) {
  switch (d) {
    case Dtype::kFp64: return ncclFloat64;
    case Dtype::kFp32: return ncclFloat32;
    case Dtype::kBf16: return ncclBfloat16;
    case Dtype::kInt32: return ncclInt32;
  }
  throw std::logic_error("NCCL has no such dtype");
}

ncclRedOp_t nccl_op(ReduceOp op) { return op == ReduceOp::kMax ? ncclMax : ncclSum; }

std::size_t elements(const Tensor& t) { return static_cast<std::size_t>(t.numel()); }

class NcclTransport : public Transport {
 public:
  explicit NcclTransport(const Group& group) : group_(group) {
    ncclUniqueId id{};
    if (group.rank == 0) check(ncclGetUniqueId(&id), "ncclGetUniqueId");
    Bytes bytes(sizeof(id));
    std::memcpy(bytes.data(), &id, sizeof(id));
    bytes = share_on_host(group, bytes);
    std::memcpy(&id, bytes.data(), sizeof(id));
    check(ncclCommInitRank(&comm_, group.size(), id, group.rank), "ncclCommInitRank");
  }
  ~NcclTransport() override {
    cuda::forget(comm_);
    if (std::uncaught_exceptions() > 0) {
      ncclCommAbort(comm_);
    } else {
      ncclCommDestroy(comm_);
    }
  }
  NcclTransport(const NcclTransport&) = delete;
  NcclTransport& operator=(const NcclTransport&) = delete;

  void all_reduce(Stream& stream, const CommCall& call, const Tensor& x, ReduceOp op) override {
    run(stream, call, [&](cudaStream_t s) {
      check(ncclAllReduce(x.raw(), x.raw(), elements(x), nccl_type(x.dtype()), nccl_op(op), comm_, s), "ncclAllReduce");
    });
    count(call, 2 * x.bytes());
  }

  void reduce_scatter(Stream& stream, const CommCall& call, const Tensor& shard, const Tensor& x, ReduceOp op) override {
    run(stream, call, [&](cudaStream_t s) {
      check(ncclReduceScatter(x.raw(), shard.raw(), elements(shard), nccl_type(x.dtype()), nccl_op(op), comm_, s),
            "ncclReduceScatter");
    });
    count(call, x.bytes());
  }

  void all_gather(Stream& stream, const CommCall& call, const Tensor& x, const Tensor& shard) override {
    run(stream, call, [&](cudaStream_t s) {
      check(ncclAllGather(shard.raw(), x.raw(), elements(shard), nccl_type(x.dtype()), comm_, s), "ncclAllGather");
    });
    count(call, x.bytes());
  }

  void exchange(Stream& stream, const CommCall& call, const std::vector<Transfer>& sends,
                const std::vector<Transfer>& receives) override {
    run(stream, call, [&](cudaStream_t s) {
      check(ncclGroupStart(), "ncclGroupStart");  // without the group a send could wait for a receive that comes after it
      for (const Transfer& t : sends) check(ncclSend(t.data, t.bytes, ncclInt8, t.peer, comm_, s), "ncclSend");
      for (const Transfer& t : receives) check(ncclRecv(t.data, t.bytes, ncclInt8, t.peer, comm_, s), "ncclRecv");
      check(ncclGroupEnd(), "ncclGroupEnd");
    });
    for (const Transfer& t : sends) call.count->wire += static_cast<std::int64_t>(t.bytes);
    for (const Transfer& t : sends)
      if (leaves_node(t.peer)) call.count->between_nodes += static_cast<std::int64_t>(t.bytes);
  }

 private:
  template <typename Operation>
  void run(Stream& stream, const CommCall& call, const Operation& operation) {
    world().order().compare();
    {
      const cuda::ProfileScope profile(stream, call.name);
      operation(cuda::native(stream));
    }
    cuda::watch(comm_, call.name, stream);
  }

  [[nodiscard]] bool leaves_node(int peer) const {
    return world().node(group_.ranks[static_cast<std::size_t>(peer)]) != world().node(world().rank());
  }

  // A ring: (N-1)/N of the bytes go to the next rank.
  void count(const CommCall& call, std::size_t bytes) const {
    const auto n = static_cast<std::int64_t>(group_.size());
    const std::int64_t wire = static_cast<std::int64_t>(bytes) * (n - 1) / n;
    call.count->wire += wire;
    if (leaves_node((group_.rank + 1) % group_.size())) call.count->between_nodes += wire;
  }

  Group group_;
  ncclComm_t comm_ = nullptr;
};

}  // namespace

std::unique_ptr<Transport> make_nccl_transport(const Group& group, const void*) {
  return std::make_unique<NcclTransport>(group);
}

}  // namespace ref5d
