// Messages of the expert-parallel axis, on its stream: begun, and finished when the result is needed.
#pragma once

#include <vector>

#include "common/comm/communicator.h"
#include "common/model/context.h"

namespace ref5d::expert_parallel {

// How many rows each rank of a communicator gets from this one, and sends to it.
struct RowCounts {
  std::vector<std::int64_t> sent, received;
  [[nodiscard]] RowCounts reversed() const { return {received, sent}; }
  [[nodiscard]] std::int64_t received_rows() const;
};

// Rows that are under way. sent and received are on the compute stream, which waits for the other in finish().
class Exchange {
 public:
  Exchange() = default;
  // `phase`: what the traffic is entered under.
  Exchange(Context& ctx, Communicator& ranks, Stream& stream, const Tensor& sent, const RowCounts& counts, const char* phase);
  [[nodiscard]] Tensor finish(Context& ctx);

 private:
  Tensor sent_, received_;
  Event done_;
};

// The phase of what a forward sends: "recomputation" where it runs again.
[[nodiscard]] inline const char* forward_phase(const Context& ctx, const char* phase) {
  return ctx.recomputing ? "recomputation" : phase;
}

}  // namespace ref5d::expert_parallel
