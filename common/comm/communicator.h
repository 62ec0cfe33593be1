// The operations between ranks. Each takes a stream and returns at once; what is enqueued on the stream later sees the result.
// Tensors must stay allocated until the stream has passed, as with a kernel. Every rank of a communicator makes the same calls
// in the same order. Arguments that do not fit together on this rank are a std::logic_error, at once; what does not fit between
// ranks, a message of another length or none in time, is a RunError at a wait of the host.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/comm/group.h"
#include "common/comm/transport.h"
#include "common/tensor/tensor.h"

namespace ref5d {

// One message of a batch.
struct Message {
  Tensor tensor;  // contiguous
  int peer;       // a rank of the communicator
};

class Communicator {
 public:
  Communicator(std::string axis, Group group);

  [[nodiscard]] const std::string& axis() const { return axis_; }
  [[nodiscard]] const Group& group() const { return group_; }
  [[nodiscard]] int rank() const { return group_.rank; }
  [[nodiscard]] int size() const { return group_.size(); }

  // x [any] = the sum (or maximum) over the ranks. fp64, fp32, bf16, int32; added in the accumulator's dtype in rank order and
  // rounded once (NCCL adds in an order of its own). Moves 2 B (N-1)/N bytes per rank.
  void all_reduce(Stream& stream, const Tensor& x, ReduceOp op = ReduceOp::kSum);
  // shard [n / N] = the sum of part `rank()` of x [n] over the ranks. May be that part of x. Moves B (N-1)/N.
  void reduce_scatter(Stream& stream, const Tensor& shard, const Tensor& x, ReduceOp op = ReduceOp::kSum);
  // x [n] = the ranks' shards [n / N], joined. The shard may be its own part of x. Any dtype. Moves B (N-1)/N.
  void all_gather(Stream& stream, const Tensor& x, const Tensor& shard);
  // Rows of dim 0: sent holds sent_rows[r] rows for each rank r in turn, received gets received_rows[r] rows from each.
  void all_to_all(Stream& stream, const Tensor& received, const Tensor& sent, const std::vector<std::int64_t>& received_rows,
                  const std::vector<std::int64_t>& sent_rows);
  // The same number of rows for everyone; dim 0 is a multiple of N.
  void all_to_all(Stream& stream, const Tensor& received, const Tensor& sent);
  void broadcast(Stream& stream, const Tensor& x, int root);
  // Sends and receives posted together, so that ranks which exchange do not wait for each other. Between a pair of ranks
  // messages arrive in the order in which they were sent. Nobody sends to itself.
  void p2p_batch(Stream& stream, const std::vector<Message>& sends, const std::vector<Message>& receives);

 private:
  // Enters the call into the ledgers. count and detail are what all ranks must agree on.
  [[nodiscard]] CommCall begin(const char* op, std::int64_t count, Dtype dtype, std::int64_t payload_bytes, int detail = 0);
  void expect_exchangeable(const Tensor& received, const Tensor& sent, const std::vector<std::int64_t>& received_rows,
                           const std::vector<std::int64_t>& sent_rows) const;

  std::string axis_;
  Group group_;
  std::unique_ptr<Transport> transport_;
};

}  // namespace ref5d
