// Data parallelism applied to a trainer: replicas of the model share the global batch.
#pragma once

#include <cstdint>

#include "02_ddp_zero/strategy.h"
#include "common/comm/mesh.h"
#include "common/train/trainer.h"

namespace ref5d::data_parallel {

// The contiguous samples of a batch that replica `rank` of `ranks` takes; labels are still counted over all of it.
// std::logic_error unless the shares are equal: every replica must run as many micro-batches.
[[nodiscard]] GlobalBatch share_of_replica(const GlobalBatch& batch, std::int64_t rank, std::int64_t ranks);

// Turns the options of a single-device run into those of this rank: the trainer takes its share of each global batch, and holds
// and reduces what the strategy says, over the mesh's dp axis, and cp with it: ranks along cp take the same samples, other
// tokens of them. shard_size: of hsdp. The mesh must outlive the trainer.
void apply(TrainerOptions& options, Mesh& mesh, const StrategyOptions& strategy, int shard_size);

}  // namespace ref5d::data_parallel
