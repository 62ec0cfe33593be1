#include "02_ddp_zero/master_shards.h"

namespace ref5d::data_parallel {

void shard_master(const Setup& setup, const FlatGroups& groups, std::vector<Tensor>& masters, Parameter& p) {
  if (!p.master) return;
  const auto [g, member] = groups.find(p);
  const int rank = setup.ranks_of(groups[g]).shard.rank();
  if (!masters[g]) {
    masters[g] = Tensor::empty({groups[g].own_numel(rank)}, p.master.dtype(), MemoryCategory::kMaster, setup.compute);
  }
  const Tensor part = groups[g].part_of(masters[g], member, rank);
  const Tensor held = held_part(p, p.master);
  copy_on_device(setup.compute, part.raw(), held.raw(), part.bytes());
  p.master = part;
}

}  // namespace ref5d::data_parallel
