// Between nodes a token travels once to each node that has one of its experts, and inside that node to the ranks that have
// them.
//
//   between nodes   a copy of the row, and its choices and weights there, to the rank of the other node that has this rank's
//   place inside a node   alltoall_dispatcher.h, from there on and back, the node's part of the weighted sum included between
//   nodes   one row of that sum back
//
// So k experts on M nodes cost M rows between nodes in each of the four ways, and not k: with a choice that is limited to few
// nodes (ChoiceRule::top_groups) the slow links carry little, and the fast ones inside a node the rest. DeepSeek-V3, section
// 3.2.2.
#pragma once

#include "06_expert_parallel/expert_axis.h"
#include "common/model/token_dispatcher.h"

namespace ref5d::expert_parallel {

class HierarchicalDispatcher : public TokenDispatcher {
 public:
  HierarchicalDispatcher(const std::shared_ptr<ExpertAxis>& axis, const MoeConfig& moe);
  [[nodiscard]] std::shared_ptr<TokenTrip> begin_dispatch(Context& ctx, const Tensor& x, const Routing& routing) override;

 private:
  std::shared_ptr<ExpertAxis> axis_;
  MoeConfig moe_;
  std::vector<int> gateways_;  // of each node: the rank to which this one sends what is for the node
  std::vector<double> node_of_expert_;
};

}  // namespace ref5d::expert_parallel
