#include "04_seq_context_parallel/attention_plan.h"

#include <cstring>

namespace ref5d::context_parallel {

namespace {

using Ints = std::vector<std::int32_t>;

Tensor to_device(const Ints& values, Shape shape, Stream& stream) {
  HostTensor host{Dtype::kInt32, shape, std::vector<std::byte>(values.size() * sizeof(std::int32_t))};
  if (!values.empty()) std::memcpy(host.data.data(), values.data(), host.data.size());
  return Tensor::from_host(host, Dtype::kInt32, MemoryCategory::kWorkspace, stream);
}

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

void plan_unsharding(AttentionPlan& plan, const ContextAxis& axis, std::int64_t batch, Stream& stream) {
  Unsharding u = unsharding(axis.layout_of_group(), batch, axis.options().kind == "allgather");
  if (axis.faults().rank_order) u = as_if_in_order(std::move(u));
  plan.to_sequence = to_device(u.to_sequence, {static_cast<std::int64_t>(u.to_sequence.size())}, stream);
  plan.to_ranks = to_device(u.to_ranks, {static_cast<std::int64_t>(u.to_ranks.size())}, stream);
}

}  // namespace

AttentionPlan make_plan(const ContextAxis& axis, std::span<const Row> rows, Stream& stream) {
  const auto batch = static_cast<std::int64_t>(rows.size());
  const SequenceLayout& ring = axis.layout_of_ring();
  const int groups = ring.ranks(), me = axis.rank() / axis.layout_of_group().ranks();
  // allgather leaves queries where they are; ulysses brings all of a group's to every rank of it, for some of the heads.
  const Places& queries = axis.options().kind == "allgather" ? axis.layout().of(axis.rank()) : ring.of(me);
  const Shape shape{batch, static_cast<std::int64_t>(queries.size())};
  const Ints order = values_at(rows, &Row::order, queries), start = values_at(rows, &Row::start, queries);
  const Tensor q_order = to_device(order, shape, stream), q_start = to_device(start, shape, stream);
  AttentionPlan plan;
  for (int g = 0; g < groups; ++g) {
    const Ints keys = values_at(rows, &Row::order, ring.of(g));
    KeyBlock& block = plan.blocks.emplace_back();
    block.length = ring.length(g);
    block.visible_pairs = visible_pairs(order, start, keys, batch);
    if (axis.faults().skip_by_rank && g > me) block.visible_pairs = 0;
    block.tokens = make_attention_tokens(stream, q_order, q_start, to_device(keys, {batch, block.length}, stream));
  }
  if (axis.layout_of_group().ranks() > 1) plan_unsharding(plan, axis, batch, stream);
  return plan;
}

const AttentionPlan* plan_of(const Context& ctx) {
  const auto* plan = std::any_cast<std::shared_ptr<const AttentionPlan>>(&ctx.batch->attention_plan);
  return plan == nullptr ? nullptr : plan->get();
}

}  // namespace ref5d::context_parallel
