// Between nodes a token travels once to each node that has one of its experts, and inside that node to the ranks that have
// them.
//
//   rank r     -- row, its choices and weights -->  rank of node n  -- alltoall_dispatcher.h -->  experts on node n
//   its sum y  <-- one row -----------------------  weighted sum    <-- their results -----------
//
// Of another node it is the rank with this one's place inside a node. Backward goes the same ways with gradients.
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
