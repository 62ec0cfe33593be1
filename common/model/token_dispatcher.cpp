#include "common/model/token_dispatcher.h"

#include <algorithm>
#include <numeric>

#include "common/kernels/expert_padding.h"
#include "common/kernels/expert_rows.h"

namespace ref5d {

SortedSlots sort_by_expert(Context& ctx, const Tensor& chosen, const MoeConfig& moe) {
  const Tensor order = ctx.integers({chosen.numel()}), counts = ctx.integers({moe.experts});
  sort_slots(ctx.stream, order, counts, chosen);
  SortedSlots sorted{{}, ctx.integers(chosen.shape()), {}, {}};
  if (moe.pad_to_capacity) {
    const std::int64_t each = std::min(moe.capacity(ctx.batch->balance.all_tokens), chosen.dim(0));
    sorted.counts.assign(static_cast<std::size_t>(moe.experts), each);
    sorted.order = ctx.integers({moe.experts * each});
    pad_slots(ctx.stream, sorted.order, order, counts, each);
  } else {
    sorted.counts_on_device = counts;
    for (const double n : counts.to_doubles(ctx.stream)) sorted.counts.push_back(static_cast<std::int64_t>(n));
    sorted.order = order.rows(0, std::accumulate(sorted.counts.begin(), sorted.counts.end(), std::int64_t{0}));
  }
  invert_order(ctx.stream, sorted.place.view({chosen.numel()}), sorted.order);
  return sorted;
}

namespace {

class LocalTrip : public TokenTrip {
 public:
  LocalTrip(Context& ctx, const Tensor& x, const Routing& routing, const MoeConfig& moe, std::int64_t begin, std::int64_t count)
      : weights_(routing.weights), slots_(sort_by_expert(ctx, routing.chosen, moe)) {
    slots_.counts = {slots_.counts.begin() + begin, slots_.counts.begin() + begin + count};
    rows_ = ctx.activation({slots_.order.numel(), x.dim(1)});
    take_slots(ctx.stream, rows_, x, slots_.order, static_cast<int>(routing.chosen.dim(1)));
  }

  ExpertRows finish_dispatch(Context&) override { return {std::move(rows_), slots_.counts}; }
  void begin_combine(Context&, const Tensor& outputs) override { outputs_ = outputs; }
  Tensor finish_combine(Context& ctx) override {
    Tensor y = ctx.activation({slots_.place.dim(0), outputs_.dim(1)});
    sum_slots(ctx.stream, y, outputs_, slots_.place, weights_);
    return y;
  }

  void begin_combine_backward(Context&, const Tensor& dy) override { dy_ = dy; }
  Tensor finish_combine_backward(Context& ctx) override {
    dweights_ = ctx.statistic(weights_.shape());
    slot_weights_backward(ctx.stream, dweights_, dy_, outputs_, slots_.place);
    Tensor doutputs = ctx.activation(outputs_.shape());
    sum_slots_backward(ctx.stream, doutputs, dy_, slots_.order, weights_);
    outputs_ = dy_ = {};
    return doutputs;
  }
  void begin_dispatch_backward(Context&, const Tensor& drows) override { drows_ = drows; }
  Gradients finish_dispatch_backward(Context& ctx) override {
    Gradients g{ctx.activation({slots_.place.dim(0), drows_.dim(1)}), dweights_};
    sum_slots(ctx.stream, g.dx, drows_, slots_.place, {});
    drows_ = {};
    return g;
  }

 private:
  Tensor weights_;
  SortedSlots slots_;
  Tensor rows_, outputs_, dy_, dweights_, drows_;
};

}  // namespace

std::shared_ptr<TokenTrip> local_trip(Context& ctx, const Tensor& x, const Routing& routing, const MoeConfig& moe,
                                      std::int64_t begin, std::int64_t count) {
  return std::make_shared<LocalTrip>(ctx, x, routing, moe, begin, count);
}

std::shared_ptr<TokenTrip> LocalDispatcher::begin_dispatch(Context& ctx, const Tensor& x, const Routing& routing) {
  return local_trip(ctx, x, routing, moe_, 0, moe_.experts);
}

}  // namespace ref5d
