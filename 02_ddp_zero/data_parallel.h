// Data parallelism applied to a trainer: replicas of the model share the global batch.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "02_ddp_zero/strategy.h"
#include "common/comm/mesh.h"
#include "common/train/trainer.h"

namespace ref5d::data_parallel {

// The contiguous samples of a batch that replica `rank` of `ranks` takes; labels are still counted over all of it.
// std::logic_error unless the shares are equal: every replica must run as many micro-batches.
[[nodiscard]] GlobalBatch share_of_replica(const GlobalBatch& batch, std::int64_t rank, std::int64_t ranks);

// Makes `options` those of one rank among replicas.size(): its batch stays the global one. shard_size: of hsdp. The
// communicators come from the mesh, which must outlive the trainer.
void apply(TrainerOptions& options, Mesh& mesh, const StrategyOptions& strategy, int shard_size);

// Of all their bits: equal for equal tensors, and with all likelihood only then.
[[nodiscard]] std::string fingerprint(const std::vector<HostTensor>& tensors);
// Whether tensors that the ranks of a group should hold alike are equal in every bit, on all of them.
[[nodiscard]] bool equal_on_all(const Group& group, const std::vector<Tensor>& tensors, Stream& stream);

}  // namespace ref5d::data_parallel
