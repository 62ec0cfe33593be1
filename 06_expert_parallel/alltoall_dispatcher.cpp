#include "06_expert_parallel/alltoall_dispatcher.h"

#include <numeric>

#include "06_expert_parallel/exchange.h"
#include "common/comm/world.h"
#include "common/kernels/expert_rows.h"
#include "common/kernels/rows.h"

namespace ref5d::expert_parallel {

namespace {

using Counts = std::vector<std::int64_t>;

Tensor index_of(const std::vector<double>& values, Stream& stream) {
  const auto n = static_cast<std::int64_t>(values.size());
  return Tensor::from_host(HostTensor::from_doubles(values, {n}, Dtype::kInt32), Dtype::kInt32, MemoryCategory::kActivations,
                           stream);
}

// How many rows each rank has for each of this rank's experts: [rank][expert].
std::vector<Counts> exchange_counts(Context& ctx, const ExpertRanks& to, const SortedSlots& slots) {
  const Range own = to.experts[static_cast<std::size_t>(to.ranks.rank())];
  const std::size_t ranks = to.experts.size(), experts = static_cast<std::size_t>(own.size());
  if (!slots.counts_on_device)  // all pad alike
    return std::vector(ranks, Counts(slots.counts.begin() + own.begin, slots.counts.begin() + own.end));
  const Tensor sent = slots.counts_on_device.rows(to.experts.front().begin, to.experts.back().end);
  RowCounts rows{{}, Counts(ranks, own.size())};
  for (const Range& share : to.experts) rows.sent.push_back(share.size());
  Exchange exchange(ctx, to.ranks, to.stream, sent.view({sent.numel(), 1}), rows, forward_phase(ctx, "counts"));
  const std::vector<double> all = exchange.finish(ctx).to_doubles(ctx.stream);
  std::vector<Counts> received(ranks, Counts(experts));
  for (std::size_t i = 0; i < all.size(); ++i) received[i / experts][i % experts] = static_cast<std::int64_t>(all[i]);
  return received;
}

class AllToAllTrip : public TokenTrip {
 public:
  AllToAllTrip(Context& ctx, const Tensor& x, const Routing& routing, ExpertRanks to, const MoeConfig& moe)
      : to_(std::move(to)), weights_(routing.weights), slots_(sort_by_expert(ctx, routing.chosen, moe)) {
    const std::vector<Counts> received = exchange_counts(ctx, to_, slots_);
    for (const Range& share : to_.experts)
      counts_.sent.push_back(
          std::accumulate(slots_.counts.begin() + share.begin, slots_.counts.begin() + share.end, std::int64_t{0}));
    for (const Counts& from : received) counts_.received.push_back(std::accumulate(from.begin(), from.end(), std::int64_t{0}));
    group_by_expert(received, ctx.stream);
    const Tensor rows = ctx.activation({slots_.order.numel(), x.dim(1)});
    take_slots(ctx.stream, rows, x, slots_.order, static_cast<int>(routing.chosen.dim(1)));
    under_way_ = send(ctx, rows, counts_, forward_phase(ctx, "dispatch"));
  }

  ExpertRows finish_dispatch(Context& ctx) override { return {reorder(ctx, under_way_.finish(ctx), by_expert_), of_expert_}; }
  void begin_combine(Context& ctx, const Tensor& outputs) override {
    under_way_ = send(ctx, reorder(ctx, outputs, by_sender_), counts_.reversed(), forward_phase(ctx, "combine"));
  }
  Tensor finish_combine(Context& ctx) override {
    outputs_ = under_way_.finish(ctx);
    Tensor y = ctx.activation({slots_.place.dim(0), outputs_.dim(1)});
    sum_slots(ctx.stream, y, outputs_, slots_.place, weights_);
    return y;
  }

  void begin_combine_backward(Context& ctx, const Tensor& dy) override {
    const Tensor doutputs = ctx.activation(outputs_.shape());
    sum_slots_backward(ctx.stream, doutputs, dy, slots_.order, weights_);
    under_way_ = send(ctx, doutputs, counts_, "combine backward");
    dweights_ = ctx.statistic(weights_.shape());  // while the rows travel
    slot_weights_backward(ctx.stream, dweights_, dy, outputs_, slots_.place);
    outputs_ = {};
  }
  Tensor finish_combine_backward(Context& ctx) override { return reorder(ctx, under_way_.finish(ctx), by_expert_); }
  void begin_dispatch_backward(Context& ctx, const Tensor& drows) override {
    under_way_ = send(ctx, reorder(ctx, drows, by_sender_), counts_.reversed(), "dispatch backward");
  }
  Gradients finish_dispatch_backward(Context& ctx) override {
    const Tensor drows = under_way_.finish(ctx);
    Gradients g{ctx.activation({slots_.place.dim(0), drows.dim(1)}), dweights_};
    sum_slots(ctx.stream, g.dx, drows, slots_.place, {});
    return g;
  }

 private:
  [[nodiscard]] Exchange send(Context& ctx, const Tensor& rows, const RowCounts& counts, const char* phase) {
    return {ctx, to_.ranks, to_.stream, rows, counts, phase};
  }

  // Rows arrive by sender, and by expert of each; experts want all senders' rows together.
  void group_by_expert(const std::vector<Counts>& received, Stream& stream) {
    of_expert_.assign(received.front().size(), 0);
    std::vector<double> by_expert, by_sender(static_cast<std::size_t>(counts_.received_rows()));
    for (std::size_t e = 0; e < of_expert_.size(); ++e) {
      std::int64_t at = 0;  // of the sender's rows for this expert among all that have arrived
      for (const Counts& from : received) {
        const std::int64_t begin =
            at + std::accumulate(from.begin(), from.begin() + static_cast<std::ptrdiff_t>(e), std::int64_t{0});
        for (std::int64_t i = begin; i < begin + from[e]; ++i) {
          by_sender[static_cast<std::size_t>(i)] = static_cast<double>(by_expert.size());
          by_expert.push_back(static_cast<double>(i));
        }
        of_expert_[e] += from[e];
        at += std::accumulate(from.begin(), from.end(), std::int64_t{0});
      }
    }
    if (to_.rows_by_sender) {
      std::iota(by_expert.begin(), by_expert.end(), 0.0);
      by_sender = by_expert;
    }
    by_expert_ = index_of(by_expert, stream);
    by_sender_ = index_of(by_sender, stream);
  }
  [[nodiscard]] static Tensor reorder(Context& ctx, const Tensor& rows, const Tensor& index) {
    Tensor reordered = ctx.activation(rows.shape());
    if (rows.numel() > 0) take_rows(ctx.stream, reordered, rows, index);
    return reordered;
  }

  ExpertRanks to_;
  Tensor weights_;
  SortedSlots slots_;
  RowCounts counts_;
  Counts of_expert_;              // rows of each expert that is here
  Tensor by_expert_, by_sender_;  // received rows in the one order and back
  Exchange under_way_;
  Tensor outputs_, dweights_;
};

}  // namespace

std::shared_ptr<TokenTrip> alltoall_trip(Context& ctx, const Tensor& x, const Routing& routing, const ExpertRanks& ranks,
                                         const MoeConfig& moe) {
  return std::make_shared<AllToAllTrip>(ctx, x, routing, ranks, moe);
}

std::shared_ptr<TokenTrip> AllToAllDispatcher::begin_dispatch(Context& ctx, const Tensor& x, const Routing& routing) {
  std::vector<Range> experts;
  for (int r = 0; r < axis_->size(); ++r) experts.push_back(axis_->experts_of(r));
  return alltoall_trip(ctx, x, routing, {axis_->communicator(), axis_->stream(), experts, axis_->faults().rows_by_sender},
                       moe_);
}

}  // namespace ref5d::expert_parallel
