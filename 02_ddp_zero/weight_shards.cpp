#include "02_ddp_zero/weight_shards.h"

#include <algorithm>

#include "02_ddp_zero/master_shards.h"

namespace ref5d::data_parallel {

WeightShards::WeightShards(const Setup& setup, const FlatGroups& units)
    : setup_(setup),
      units_(units),
      of_model_unit_(groups_of_units(setup.gpt, units)),
      shards_(units.size()),
      masters_(units.size()),
      whole_(units.size()),
      gathered_(units.size()) {}

void WeightShards::shard(Parameter& p) {
  const auto [g, member] = units_.find(p);
  const int rank = setup_.ranks_of(units_[g]).shard.rank();
  if (!shards_[g]) {
    shards_[g] = allocate_flat(units_[g].shard_numel(), units_[g].own_numel(rank), setup_.options.padding, p.weight.dtype(),
                               MemoryCategory::kParameters, setup_.compute);
  }
  const Tensor part = units_[g].part_of(shards_[g], member, rank), held = held_part(p, p.weight);
  copy_on_device(setup_.compute, part.raw(), held.raw(), part.bytes());
  p.weight = part;
  shard_master(setup_, units_, masters_, p);
}

const WeightShards::Groups& WeightShards::groups_of(std::int64_t unit) const {
  static const Groups kNone;
  const bool exists = unit >= 0 && unit < static_cast<std::int64_t>(of_model_unit_.size());
  return exists ? of_model_unit_[static_cast<std::size_t>(unit)] : kNone;
}

void WeightShards::bring(std::int64_t unit, std::int64_t next, const char* pass) {
  for (std::size_t g : groups_of(unit)) {
    if (!whole_[g]) gather(g, pass);
    wait(setup_.compute, gathered_[g]);
  }
  if (!setup_.options.prefetch) return;
  for (std::size_t g : groups_of(next))
    if (!whole_[g]) gather(g, pass);
}

void WeightShards::gather(std::size_t group, const char* pass) {
  const TrafficLedger::Phase phase(world().traffic(), pass);
  const FlatGroup& unit = units_[group];
  // The shard was updated there; and a gather must not run ahead of the units whose memory it would need.
  order(setup_.compute, comm_);
  whole_[group] = Tensor::empty({unit.padded_numel()}, shards_[group].dtype(), MemoryCategory::kParameters, comm_);
  setup_.ranks_of(unit).shard.all_gather(comm_, whole_[group], shards_[group]);
  gathered_[group].record(comm_);
  for (const FlatGroup::Member& m : unit.members) m.parameter->weight = FlatGroup::whole_of(whole_[group], m);
}

void WeightShards::release(std::int64_t unit, std::int64_t next) {
  const Groups& needed = groups_of(next);
  for (std::size_t g : groups_of(unit)) {
    if (std::find(needed.begin(), needed.end(), g) != needed.end()) continue;
    if (setup_.options.faults.stale_weights && next < 0) continue;
    order(setup_.compute, comm_);  // whose memory it is
    for (const FlatGroup::Member& m : units_[g].members)
      m.parameter->weight = units_[g].part_of(shards_[g], m, setup_.ranks_of(units_[g]).shard.rank());
    whole_[g] = {};
  }
}

}  // namespace ref5d::data_parallel
