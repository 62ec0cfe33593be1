// The fp32 masters of bf16 weights, of which every sharded strategy keeps the own shard alone.
#pragma once

#include <vector>

#include "02_ddp_zero/flat_group.h"
#include "02_ddp_zero/strategy.h"

namespace ref5d::data_parallel {

// Moves p's master into this rank's shard of its group; masters: an array for each group, made when first needed. Without
// masters it does nothing.
void shard_master(const Setup& setup, const FlatGroups& groups, std::vector<Tensor>& masters, Parameter& p);

}  // namespace ref5d::data_parallel
