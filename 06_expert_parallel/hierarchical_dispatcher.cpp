#include "06_expert_parallel/hierarchical_dispatcher.h"

#include <numeric>

#include "06_expert_parallel/alltoall_dispatcher.h"
#include "06_expert_parallel/exchange.h"
#include "common/comm/world.h"
#include "common/kernels/choice_owners.h"
#include "common/kernels/expert_rows.h"

namespace ref5d::expert_parallel {

namespace {

// This rank's way to other nodes, and inside its own that of the rows that came from everywhere.
class HierarchicalTrip : public TokenTrip {
 public:
  struct Route {
    std::shared_ptr<ExpertAxis> axis;
    const MoeConfig& moe;
    const std::vector<int>& gateways;
    const std::vector<double>& node_of_expert;
  };

  HierarchicalTrip(Context& ctx, const Tensor& x, const Routing& routing, const Route& route)
      : axis_(route.axis), moe_(route.moe), rows_(x.dim(0)) {
    const auto nodes = static_cast<std::int64_t>(route.gateways.size());
    const Tensor owner = Tensor::from_host(HostTensor::from_doubles(route.node_of_expert, {moe_.experts}, Dtype::kInt32),
                                           Dtype::kInt32, MemoryCategory::kActivations, ctx.stream);
    const Tensor owners = ctx.integers({rows_, nodes}), order = ctx.integers({rows_ * nodes}), counts = ctx.integers({nodes});
    owners_of_choices(ctx.stream, owners, routing.chosen, owner);
    sort_slots(ctx.stream, order, counts, owners);
    count_copies(counts.to_doubles(ctx.stream), route.gateways);
    const std::int64_t copies = std::accumulate(counts_.sent.begin(), counts_.sent.end(), std::int64_t{0});
    order_ = order.rows(0, copies);
    place_ = ctx.integers({rows_, nodes});
    invert_order(ctx.stream, place_.view({rows_ * nodes}), order_);
    counts_.received = exchange_counts(ctx);

    const Tensor copied = ctx.activation({copies, x.dim(1)}), chosen = ctx.integers({copies, moe_.top_k});
    const Tensor weights = ctx.statistic({copies, moe_.top_k});
    take_slots(ctx.stream, copied, x, order_, static_cast<int>(nodes));
    take_choices(ctx.stream, chosen, weights, routing.chosen, routing.weights, owner, order_, static_cast<int>(nodes));
    const char* phase = forward_phase(ctx, "dispatch");
    chosen_ = send(ctx, chosen, counts_, forward_phase(ctx, "choices"));
    weights_ = send(ctx, weights, counts_, forward_phase(ctx, "choices"));
    under_way_ = send(ctx, copied, counts_, phase);
  }

  ExpertRows finish_dispatch(Context& ctx) override {
    const Routing routing{chosen_.finish(ctx), weights_.finish(ctx)};
    inside_ = alltoall_trip(ctx, under_way_.finish(ctx), routing, ranks_of_node(), moe_);
    return inside_->finish_dispatch(ctx);
  }
  void begin_combine(Context& ctx, const Tensor& outputs) override {
    inside_->begin_combine(ctx, outputs);
    under_way_ = send(ctx, inside_->finish_combine(ctx), counts_.reversed(), forward_phase(ctx, "combine"));
  }
  Tensor finish_combine(Context& ctx) override { return sum_of_nodes(ctx, under_way_.finish(ctx)); }

  void begin_combine_backward(Context& ctx, const Tensor& dy) override {
    const Tensor copied = ctx.activation({order_.numel(), dy.dim(1)});
    take_slots(ctx.stream, copied, dy, order_, static_cast<int>(place_.dim(1)));
    under_way_ = send(ctx, copied, counts_, "combine backward");
  }
  Tensor finish_combine_backward(Context& ctx) override {
    inside_->begin_combine_backward(ctx, under_way_.finish(ctx));
    return inside_->finish_combine_backward(ctx);
  }
  void begin_dispatch_backward(Context& ctx, const Tensor& drows) override {
    inside_->begin_dispatch_backward(ctx, drows);
    const Gradients g = inside_->finish_dispatch_backward(ctx);
    weights_ = send(ctx, g.dweights, counts_.reversed(), "choices");
    under_way_ = send(ctx, g.dx, counts_.reversed(), "dispatch backward");
  }
  // A choice's weight has its gradient from the one node that the expert is on: exact zeros are added to it.
  Gradients finish_dispatch_backward(Context& ctx) override {
    const Tensor dweights = weights_.finish(ctx);
    Gradients g{sum_of_nodes(ctx, under_way_.finish(ctx)), ctx.statistic({rows_, moe_.top_k})};
    sum_slots(ctx.stream, g.dweights, dweights, place_, {});
    return g;
  }

 private:
  [[nodiscard]] Exchange send(Context& ctx, const Tensor& rows, const RowCounts& counts, const char* phase) const {
    return {ctx, axis_->communicator(), axis_->stream(), rows, counts, phase};
  }
  void count_copies(const std::vector<double>& of_nodes, const std::vector<int>& gateways) {
    counts_.sent.assign(static_cast<std::size_t>(axis_->size()), 0);
    for (std::size_t n = 0; n < gateways.size(); ++n)
      counts_.sent[static_cast<std::size_t>(gateways[n])] = static_cast<std::int64_t>(of_nodes[n]);
  }
  [[nodiscard]] std::vector<std::int64_t> exchange_counts(Context& ctx) const {
    const std::vector<double> mine(counts_.sent.begin(), counts_.sent.end());
    const auto ranks = static_cast<std::int64_t>(mine.size());
    const Tensor sent = Tensor::from_host(HostTensor::from_doubles(mine, {ranks, 1}, Dtype::kInt32), Dtype::kInt32,
                                          MemoryCategory::kActivations, ctx.stream);
    const std::vector<std::int64_t> one(mine.size(), 1);
    std::vector<std::int64_t> received;
    for (const double n : send(ctx, sent, {one, one}, forward_phase(ctx, "counts")).finish(ctx).to_doubles(ctx.stream))
      received.push_back(static_cast<std::int64_t>(n));
    return received;
  }
  [[nodiscard]] ExpertRanks ranks_of_node() const {
    ExpertRanks to{axis_->node(), axis_->stream(), {}, axis_->faults().rows_by_sender};
    const NodeRanks node = axis_->nodes()[static_cast<std::size_t>(axis_->node_of(axis_->rank()))];
    for (int r = node.begin; r < node.end; ++r) to.experts.push_back(axis_->experts_of(r));
    return to;
  }
  [[nodiscard]] Tensor sum_of_nodes(Context& ctx, const Tensor& copies) const {
    Tensor sum = ctx.activation({rows_, copies.dim(1)});
    sum_slots(ctx.stream, sum, copies, place_, {});
    return sum;
  }

  std::shared_ptr<ExpertAxis> axis_;
  MoeConfig moe_;
  std::int64_t rows_;
  RowCounts counts_;
  Tensor order_, place_;  // of the copies, by node
  Exchange chosen_, weights_, under_way_;
  std::shared_ptr<TokenTrip> inside_;
};

}  // namespace

HierarchicalDispatcher::HierarchicalDispatcher(const std::shared_ptr<ExpertAxis>& axis, const MoeConfig& moe)
    : axis_(axis), moe_(moe) {
  const int place = axis->rank() - axis->nodes()[static_cast<std::size_t>(axis->node_of(axis->rank()))].begin;
  for (const NodeRanks& node : axis->nodes()) gateways_.push_back(node.begin + place % (node.end - node.begin));
  for (std::int64_t e = 0; e < moe.experts; ++e)
    node_of_expert_.push_back(axis->node_of(rank_of_expert(e, moe.experts, axis->size())));
}

std::shared_ptr<TokenTrip> HierarchicalDispatcher::begin_dispatch(Context& ctx, const Tensor& x, const Routing& routing) {
  return std::make_shared<HierarchicalTrip>(ctx, x, routing, HierarchicalTrip::Route{axis_, moe_, gateways_, node_of_expert_});
}

}  // namespace ref5d::expert_parallel
