// Data parallelism applied to a trainer: replicas of the model share the global batch.
#pragma once

#include <cstdint>
#include <memory>

#include "02_ddp_zero/strategy.h"
#include "common/comm/mesh.h"
#include "common/train/trainer.h"

namespace ref5d::data_parallel {

// The contiguous samples of a batch that replica `rank` of `ranks` takes; labels are still counted over all of it.
// std::logic_error unless the shares are equal: every replica must run as many micro-batches.
[[nodiscard]] GlobalBatch share_of_replica(const GlobalBatch& batch, std::int64_t rank, std::int64_t ranks);

// How the micro-batches of a replica's share pass through the model on this rank.
class Passes {
 public:
  virtual ~Passes() = default;
  // Of a share of so many micro-batches, those that each gradient here is a sum over.
  [[nodiscard]] virtual std::int64_t contributions(std::int64_t micro_batches) const { return micro_batches; }
  // Of a pipeline: the loss is on some stages alone, so that it is summed over pp as well.
  [[nodiscard]] virtual bool has_stages() const { return false; }
  // Adds every micro-batch's gradients and loss, with the strategy's calls around what adds to gradients.
  virtual void run(Gpt& gpt, Context& ctx, Loader& loader, const GlobalBatch& share, std::int64_t micro_batch,
                   Strategy& strategy) = 0;
};

// Turns the options of a single-device run into those of this rank: the trainer takes its share of each global batch, and holds
// and reduces what the strategy says, over the mesh's dp axis, and cp with it: ranks along cp take the same samples, other
// tokens of them. shard_size: of hsdp. passes: null for one micro-batch after the other through the whole model. The mesh must
// outlive the trainer.
void apply(TrainerOptions& options, Mesh& mesh, const StrategyOptions& strategy, int shard_size,
           std::shared_ptr<Passes> passes = nullptr);

}  // namespace ref5d::data_parallel
