#include "06_expert_parallel/all_gather_dispatcher.h"

#include "06_expert_parallel/exchange.h"
#include "common/comm/world.h"
#include "common/kernels/choice_owners.h"

namespace ref5d::expert_parallel {

namespace {

class AllGatherTrip : public TokenTrip {
 public:
  AllGatherTrip(Context& ctx, const Tensor& x, const Routing& routing, std::shared_ptr<ExpertAxis> axis, const MoeConfig& moe)
      : axis_(std::move(axis)), moe_(moe), rows_(x.dim(0)) {
    const char* phase = forward_phase(ctx, "dispatch");
    x_ = gather(ctx, x, phase);
    chosen_ = gather(ctx, routing.chosen, phase);
    weights_ = gather(ctx, routing.weights, phase);
  }

  ExpertRows finish_dispatch(Context& ctx) override {
    finish(ctx);
    const Range own = axis_->experts_of(axis_->rank());
    const Tensor mine = ctx.integers(chosen_.shape());
    choices_of_range(ctx.stream, mine, chosen_, own.begin, own.end);
    here_ = local_trip(ctx, x_, {mine, weights_}, moe_, own.begin, own.size());
    x_ = chosen_ = weights_ = {};
    return here_->finish_dispatch(ctx);
  }
  void begin_combine(Context& ctx, const Tensor& outputs) override {
    here_->begin_combine(ctx, outputs);
    x_ = scatter(ctx, here_->finish_combine(ctx), forward_phase(ctx, "combine"));
  }
  Tensor finish_combine(Context& ctx) override {
    finish(ctx);
    return std::move(x_);
  }

  void begin_combine_backward(Context& ctx, const Tensor& dy) override { x_ = gather(ctx, dy, "combine backward"); }
  Tensor finish_combine_backward(Context& ctx) override {
    finish(ctx);
    here_->begin_combine_backward(ctx, x_);
    x_ = {};
    return here_->finish_combine_backward(ctx);
  }
  void begin_dispatch_backward(Context& ctx, const Tensor& drows) override {
    here_->begin_dispatch_backward(ctx, drows);
    const Gradients all = here_->finish_dispatch_backward(ctx);
    result_ = {scatter(ctx, all.dx, "dispatch backward"), scatter(ctx, all.dweights, "dispatch backward")};
  }
  Gradients finish_dispatch_backward(Context& ctx) override {
    finish(ctx);
    return std::move(result_);
  }

 private:
  // The rows of all ranks.
  [[nodiscard]] Tensor gather(Context& ctx, const Tensor& own, const char* phase) {
    Tensor all = start(ctx, own, own.dim(0) * axis_->size());
    const TrafficLedger::Phase scope(world().traffic(), phase);
    axis_->communicator().all_gather(axis_->stream(), all, own);
    done_.record(axis_->stream());
    return all;
  }
  // This rank's rows of the sum over ranks.
  [[nodiscard]] Tensor scatter(Context& ctx, const Tensor& all, const char* phase) {
    Tensor own = start(ctx, all, rows_);
    const TrafficLedger::Phase scope(world().traffic(), phase);
    axis_->communicator().reduce_scatter(axis_->stream(), own, all);
    done_.record(axis_->stream());
    return own;
  }
  // So many rows for the result. What is sent stays until the stream has passed.
  [[nodiscard]] Tensor start(Context& ctx, const Tensor& sent, std::int64_t rows) {
    Tensor result = Tensor::empty({rows, sent.dim(1)}, sent.dtype(), MemoryCategory::kActivations, ctx.stream);
    sent_.push_back(sent);
    order(ctx.stream, axis_->stream());
    return result;
  }
  void finish(Context& ctx) {
    wait(ctx.stream, done_);
    sent_.clear();
  }

  std::shared_ptr<ExpertAxis> axis_;
  MoeConfig moe_;
  std::int64_t rows_;
  Tensor x_, chosen_, weights_;
  std::shared_ptr<TokenTrip> here_;  // through the experts of this rank
  Gradients result_;
  std::vector<Tensor> sent_;
  Event done_;
};

}  // namespace

std::shared_ptr<TokenTrip> AllGatherDispatcher::begin_dispatch(Context& ctx, const Tensor& x, const Routing& routing) {
  return std::make_shared<AllGatherTrip>(ctx, x, routing, axis_, moe_);
}

}  // namespace ref5d::expert_parallel
