// For comparison: every rank gets all tokens, and computes what its experts have to say to any of them.
//
//   forward    all-gather of x, choices and weights; each rank's part of every token's sum; reduce-scatter of y
//   backward   all-gather of dy; reduce-scatter of dx and dweights
//
// It needs no counts and no permutation between ranks. But it moves (N-1) R H in each of the four ways whatever the choices,
// where sending tokens to experts that are chosen evenly moves k R H (N-1)/N: N/k times as much.
#pragma once

#include "06_expert_parallel/expert_axis.h"
#include "common/model/token_dispatcher.h"

namespace ref5d::expert_parallel {

class AllGatherDispatcher : public TokenDispatcher {
 public:
  AllGatherDispatcher(std::shared_ptr<ExpertAxis> axis, const MoeConfig& moe) : axis_(std::move(axis)), moe_(moe) {}
  [[nodiscard]] std::shared_ptr<TokenTrip> begin_dispatch(Context& ctx, const Tensor& x, const Routing& routing) override;

 private:
  std::shared_ptr<ExpertAxis> axis_;
  MoeConfig moe_;
};

}  // namespace ref5d::expert_parallel
