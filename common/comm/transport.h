// What moves the bytes of a communicator: MPI or NCCL.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/comm/group.h"
#include "common/comm/traffic_ledger.h"
#include "common/tensor/tensor.h"

namespace ref5d {

enum class ReduceOp { kSum, kMax };

// One operation, as it is entered in the ledgers.
struct CommCall {
  std::string name;     // for traces and time-outs: "all_reduce over dp (4096 x fp32)"
  TrafficCount* count;  // where the transport adds what it sends
};

struct Transfer {
  int peer;  // a rank of the group, never the own
  std::byte* data;
  std::size_t bytes;
};

class Transport {
 public:
  virtual ~Transport() = default;
  // Arguments were checked by Communicator; the group has at least two ranks. x, shard: contiguous.
  virtual void all_reduce(Stream& stream, const CommCall& call, const Tensor& x, ReduceOp op) = 0;
  virtual void reduce_scatter(Stream& stream, const CommCall& call, const Tensor& shard, const Tensor& x, ReduceOp op) = 0;
  virtual void all_gather(Stream& stream, const CommCall& call, const Tensor& x, const Tensor& shard) = 0;
  // All of them at once. Transfers of no bytes are left out on both sides.
  virtual void exchange(Stream& stream, const CommCall& call, const std::vector<Transfer>& sends,
                        const std::vector<Transfer>& receives) = 0;
};

// `key`, an address, stands for the communicator.
[[nodiscard]] std::unique_ptr<Transport> make_mpi_transport(const Group& group, const void* key);
// The backend that the communicators built from now on have: MPI unless something else is said (backend.h chooses).
using TransportMaker = std::unique_ptr<Transport> (*)(const Group&, const void* key);
void set_transport_maker(TransportMaker maker);
// Whether what is sent is counted at the sends, and not taken from a formula.
[[nodiscard]] bool transport_counts_wire();

}  // namespace ref5d
