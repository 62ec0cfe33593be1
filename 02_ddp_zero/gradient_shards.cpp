#include "02_ddp_zero/gradient_shards.h"

#include <set>

#include "common/kernels/elementwise.h"

namespace ref5d::data_parallel {

GradientShards::GradientShards(const Setup& setup) : setup_(setup) {
  units_ = make_units(setup.gpt, setup.options.whole_model_unit, setup.shards());
  units_.cut(setup.shard_rank());
  of_model_unit_ = groups_of_units(setup.gpt, units_);
  sums_.resize(units_.size());
  whole_.resize(units_.size());
  missing_.resize(units_.size());
  for (Parameter* p : setup.gpt.parameters())
    p->on_final.emplace_back([this](Parameter& q, Stream& stream) {
      became_final(q, stream);
      return &comm_;
    });
}

bool GradientShards::fused() const {
  return setup_.sum_dtype() != setup_.storage.dtype && setup_.storage.bf16_gradients == GradientMode::kFused;
}

// In place of whole gradients, the sum of this rank's shard.
void GradientShards::shard(Parameter& p) {
  const std::size_t g = units_.find(p).group;
  if (!sums_[g])
    sums_[g] = allocate_flat(units_[g].shard_numel(), units_[g].own_numel(ranks_of(g).shard.rank()), setup_.options.padding,
                             setup_.sum_dtype(), setup_.sum_category(), setup_.compute);
  if (across_stages(g)) return keep_whole(p, g);
  p.gradient = p.gradient_sum = {};
  p.mode = fused() ? GradientMode::kFused : GradientMode::kDirect;  // the sum over micro-batches is made here
}

void GradientShards::keep_whole(Parameter& p, std::size_t unit) {
  const FlatGroup& group = units_[unit];
  whole_[unit] = allocate_flat(group.padded_numel(), group.numel, setup_.options.padding, setup_.sum_dtype(),
                               setup_.sum_category(), setup_.compute);
  (p.gradient_sum ? p.gradient_sum : p.gradient) = FlatGroup::whole_of(whole_[unit], group.members.front());
  kept_whole_[unit] = {p.gradient, p.gradient_sum};
}

void GradientShards::begin_step(std::int64_t micro_batches) {
  micro_batches_ = micro_batches;
  for (const Tensor& sum : sums_) fill_zero(setup_.compute, sum.raw(), sum.bytes());
  for (Parameter* p : setup_.gpt.parameters()) p->gradient = p->gradient_sum = {};
  for (const auto& [unit, whole] : kept_whole_) {
    Parameter& p = *units_[unit].members.front().parameter;
    p.gradient = whole.gradient;
    p.gradient_sum = whole.gradient_sum;
    p.begin_step(setup_.compute, micro_batches);
  }
}

void GradientShards::begin_micro_batch(std::int64_t m, Units units) {
  micro_batch_ = m;
  const std::int64_t end = units.end < 0 ? setup_.gpt.unit_count() : units.end;
  std::set<std::size_t> groups;
  for (std::int64_t unit = units.begin; unit < end; ++unit)
    for (std::size_t g : of_model_unit_[static_cast<std::size_t>(unit)]) groups.insert(g);
  for (std::size_t g : groups) {
    if (across_stages(g)) continue;
    missing_[g] = units_[g].used();
    for (const FlatGroup::Member& member : units_[g].members) member.parameter->begin_step(setup_.compute, 1, false);
  }
}

void GradientShards::before_weight_gradients(std::int64_t unit) {
  std::vector<std::size_t> needed;
  for (std::size_t g : of_model_unit_[static_cast<std::size_t>(unit)])
    if (!whole_[g]) needed.push_back(g);
  if (needed.empty()) return;
  drop_reduced(opened_);  // a unit's are still on their way while these are filled
  opened_ = needed.size();
  for (std::size_t g : needed) open(g);
}

void GradientShards::open(std::size_t unit) {
  const FlatGroup& group = units_[unit];
  const Dtype dtype = fused() ? setup_.sum_dtype() : setup_.storage.dtype;
  whole_[unit] = allocate_flat(group.padded_numel(), group.numel, setup_.options.padding, dtype,
                               fused() ? setup_.sum_category() : MemoryCategory::kGradients, setup_.compute);
  for (const FlatGroup::Member& m : group.members)
    (fused() ? m.parameter->gradient_sum : m.parameter->gradient) = FlatGroup::whole_of(whole_[unit], m);
}

void GradientShards::became_final(Parameter& p, Stream& stream) {
  const std::size_t unit = units_.find(p).group;
  order(stream, comm_);
  if (across_stages(unit)) return reduce_whole(unit);
  if (--missing_[unit] == 0) reduce(unit);
}

void GradientShards::reduce_whole(std::size_t unit) {
  const StateRanks& ranks = ranks_of(unit);
  reduce_scatter_gradient(ranks.shard, comm_, sums_[unit], whole_[unit], setup_.reduce_dtype());
  if (ranks.replicate != nullptr) all_reduce_gradient(*ranks.replicate, comm_, sums_[unit], setup_.reduce_dtype());
  const double factor = setup_.planted_factor(units_[unit].expert);
  if (factor != 1) scale(comm_, sums_[unit], factor);
}

void GradientShards::reduce(std::size_t unit) {
  const Faults& faults = setup_.options.faults;
  const bool last = micro_batch_ + 1 == micro_batches_;
  const Tensor& sum = sums_[unit];
  const StateRanks& ranks = ranks_of(unit);
  if (last || !faults.last_micro_batch_only) {
    const Tensor received = Tensor::empty(sum.shape(), sum.dtype(), MemoryCategory::kCommunication, comm_);
    reduce_scatter_gradient(ranks.shard, comm_, received, whole_[unit], setup_.reduce_dtype());
    const double factor = setup_.planted_factor(units_[unit].expert);
    if (factor != 1) scale(comm_, received, factor);
    scaled_add(comm_, sum, received, 1.0);
  }
  reducing_.push_back({std::move(whole_[unit]), Event()});  // nobody reads the whole gradients any more
  reducing_.back().done.record(comm_);
  whole_[unit] = {};
  // HSDP: the replicas' sums of all micro-batches are added once. Adding them after each would count the earlier ones again.
  if (ranks.replicate != nullptr && (last || faults.reduce_before_summing))
    all_reduce_gradient(*ranks.replicate, comm_, sum, setup_.reduce_dtype());
  for (const FlatGroup::Member& m : units_[unit].members) m.parameter->gradient = m.parameter->gradient_sum = {};
}

// Whole gradients belong to the compute stream, which must not give their memory to others before they are sent.
void GradientShards::drop_reduced(std::size_t but_for) {
  while (reducing_.size() > but_for) {
    wait(setup_.compute, reducing_.front().done);
    reducing_.pop_front();
  }
}

void GradientShards::end_micro_batch(std::int64_t) { drop_reduced(0); }

void GradientShards::end_step() {
  order(comm_, setup_.compute);
  for (std::size_t g = 0; g < units_.size(); ++g) {
    for (const FlatGroup::Member& m : units_[g].members) {
      const Tensor part = units_[g].part_of(sums_[g], m, ranks_of(g).shard.rank());
      (setup_.sum_dtype() == setup_.storage.dtype ? m.parameter->gradient : m.parameter->gradient_sum) = part;
    }
  }
}

}  // namespace ref5d::data_parallel
