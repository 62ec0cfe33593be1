#include "02_ddp_zero/full_weights.h"

#include "02_ddp_zero/master_shards.h"

namespace ref5d::data_parallel {

FullWeights::FullWeights(const Setup& setup, const FlatGroups& groups)
    : setup_(setup), groups_(groups), flat_(groups.size()), masters_(groups.size()) {}

void FullWeights::shard(Parameter& p) {
  const auto [g, member] = groups_.find(p);
  if (!flat_[g]) {
    flat_[g] = allocate_flat(groups_[g].padded_numel(), groups_[g].numel, setup_.options.padding, p.weight.dtype(),
                             MemoryCategory::kParameters, setup_.compute);
  }
  const Tensor whole = FlatGroup::whole_of(flat_[g], member);
  copy_on_device(setup_.compute, whole.raw(), p.weight.raw(), whole.bytes());
  p.weight = whole;
  shard_master(setup_, groups_, masters_, p);
}

void FullWeights::after_update() {
  if (setup_.options.faults.no_weight_gather) return;
  const TrafficLedger::Phase phase(world().traffic(), "weights");
  order(setup_.compute, comm_);
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    Communicator& ranks = setup_.ranks_of(groups_[g]).shard;
    ranks.all_gather(comm_, flat_[g], groups_[g].shard_of(flat_[g], ranks.rank()));
  }
  order(comm_, setup_.compute);
}

}  // namespace ref5d::data_parallel
