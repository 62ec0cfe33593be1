// Every token is sent to the ranks of its experts, once for each of its experts: counts first, then rows, and the results back
// the same way.
//
//   rank 0   rows by expert   [e0 e0 e1 | e2 e3]     to rank 0: 3, to rank 1: 2
//   rank 1   rows by expert   [e0 e1 e1 | e3 e3]     to rank 0: 3, to rank 1: 2
//   rank 0   received         [e0 e0 e1 | e0 e1 e1]  by sender, and by expert of each
//            by expert        [e0 e0 e0 | e1 e1 e1]
//
// Both directions and both passes move the rows that left: rows x H x (bytes of an element), four times.
#pragma once

#include "06_expert_parallel/expert_axis.h"
#include "common/model/token_dispatcher.h"

namespace ref5d::expert_parallel {

// Ranks, the experts that each of them has, and the stream of their messages.
struct ExpertRanks {
  Communicator& ranks;
  Stream& stream;
  std::vector<Range> experts;   // by rank, in ascending order
  bool rows_by_sender = false;  // a mistake to show
};

[[nodiscard]] std::shared_ptr<TokenTrip> alltoall_trip(Context& ctx, const Tensor& x, const Routing& routing,
                                                       const ExpertRanks& ranks, const MoeConfig& moe);

class AllToAllDispatcher : public TokenDispatcher {
 public:
  AllToAllDispatcher(std::shared_ptr<ExpertAxis> axis, const MoeConfig& moe) : axis_(std::move(axis)), moe_(moe) {}
  [[nodiscard]] std::shared_ptr<TokenTrip> begin_dispatch(Context& ctx, const Tensor& x, const Routing& routing) override;

 private:
  std::shared_ptr<ExpertAxis> axis_;
  MoeConfig moe_;
};

}  // namespace ref5d::expert_parallel
