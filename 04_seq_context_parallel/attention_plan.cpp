#include "04_seq_context_parallel/attention_plan.h"

#include <cstring>
#include <utility>

namespace ref5d::context_parallel {

namespace {

using Ints = std::vector<std::int32_t>;

// Arrays that go to the device together, in one copy.
class Upload {
 public:
  // Its place among them.
  std::size_t add(const Ints& values) {
    places_.emplace_back(static_cast<std::int64_t>(all_.size()), static_cast<std::int64_t>(all_.size() + values.size()));
    all_.insert(all_.end(), values.begin(), values.end());
    return places_.size() - 1;
  }
  void copy(Stream& stream) {
    HostTensor host{Dtype::kInt32, {static_cast<std::int64_t>(all_.size())}, {}};
    host.data.resize(all_.size() * sizeof(std::int32_t));
    std::memcpy(host.data.data(), all_.data(), host.data.size());
    device_ = Tensor::from_host(host, Dtype::kInt32, MemoryCategory::kWorkspace, stream);
  }
  [[nodiscard]] Tensor of(std::size_t array, Shape shape) const {
    return device_.rows(places_[array].first, places_[array].second).view(std::move(shape));
  }

 private:
  Ints all_;
  std::vector<std::pair<std::int64_t, std::int64_t>> places_;
  Tensor device_;
};

// Of each row in turn, the values at these places.
Ints values_at(std::span<const Row> rows, const Ints Row::*values, const Places& places) {
  Ints all;
  for (const Row& row : rows)
    for (const std::int32_t place : places) all.push_back((row.*values)[static_cast<std::size_t>(place)]);
  return all;
}

// A mistake to show: the places in the order of the ranks, for those that are at these places.
Unsharding as_if_in_order(Unsharding u) {
  for (std::size_t i = 0, next = 0; i < u.to_ranks.size(); ++i)
    if (u.to_ranks[i] >= 0) u.to_ranks[i] = static_cast<std::int32_t>(next++);
  for (std::size_t i = 0; i < u.to_ranks.size(); ++i)
    if (u.to_ranks[i] >= 0) u.to_sequence[static_cast<std::size_t>(u.to_ranks[i])] = static_cast<std::int32_t>(i);
  return u;
}

Unsharding unsharding_of(const ContextAxis& axis, std::int64_t batch) {
  if (axis.group_size() == 1) return {};
  Unsharding u = unsharding(axis.layout_of_group(), batch, axis.options().kind == "allgather");
  return axis.faults().rank_order ? as_if_in_order(std::move(u)) : u;
}

}  // namespace

AttentionPlan make_plan(const ContextAxis& axis, std::span<const Row> rows, Stream& stream) {
  const auto batch = static_cast<std::int64_t>(rows.size());
  const SequenceLayout& ring = axis.layout_of_ring();
  // allgather leaves queries where they are; ulysses brings all of a group's to every rank of it, for some of the heads.
  const Places& queries = axis.options().kind == "allgather" ? axis.layout().of(axis.rank()) : ring.of(axis.place_on_ring());
  const Ints order = values_at(rows, &Row::order, queries), start = values_at(rows, &Row::start, queries);
  const Unsharding u = unsharding_of(axis, batch);
  Upload upload;
  const std::size_t q_order = upload.add(order), q_start = upload.add(start), to_sequence = upload.add(u.to_sequence),
                    to_ranks = upload.add(u.to_ranks);
  AttentionPlan plan;
  std::vector<std::size_t> k_orders;
  for (int g = 0; g < ring.ranks(); ++g) {
    const Ints keys = values_at(rows, &Row::order, ring.of(g));
    k_orders.push_back(upload.add(keys));
    const bool skipped = axis.faults().skip_by_rank && g > axis.place_on_ring();
    plan.blocks.push_back({{}, ring.length(g), skipped ? 0 : visible_pairs(order, start, keys, batch)});
  }
  upload.copy(stream);
  const Shape shape{batch, static_cast<std::int64_t>(queries.size())};
  for (std::size_t g = 0; g < plan.blocks.size(); ++g) {
    KeyBlock& block = plan.blocks[g];
    const Tensor k_order = upload.of(k_orders[g], {batch, block.length});
    block.tokens = g == 0 ? make_attention_tokens(stream, upload.of(q_order, shape), upload.of(q_start, shape), k_order)
                          : with_keys(stream, plan.blocks[0].tokens, k_order);
  }
  if (axis.group_size() == 1) return plan;
  plan.to_sequence = upload.of(to_sequence, {static_cast<std::int64_t>(u.to_sequence.size())});
  plan.to_ranks = upload.of(to_ranks, {static_cast<std::int64_t>(u.to_ranks.size())});
  return plan;
}

const AttentionPlan* plan_of(const Context& ctx) {
  const auto* plan = std::any_cast<std::shared_ptr<const AttentionPlan>>(&ctx.batch->attention_plan);
  return plan == nullptr ? nullptr : plan->get();
}

}  // namespace ref5d::context_parallel
