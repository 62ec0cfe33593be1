// What sequence and context parallelism cost beside what the ledgers counted.
#pragma once

#include <cstdint>
#include <vector>

#include "02_ddp_zero/strategy.h"
#include "04_seq_context_parallel/costs.h"
#include "common/train/dataset.h"
#include "common/verify/report.h"

namespace ref5d::seq_context_parallel {

// What was counted on one rank.
struct RankCounts {
  std::int64_t linear_flops = 0, attention_flops = 0;  // of the first step
  std::int64_t bytes_per_layer = 0;                    // that a layer kept of one micro-batch
};

// Adds the claims to the report, which has every rank's memory and the traffic. shard_size: over how many ranks hsdp shards; of
// the other strategies, over how many gradients are summed. counts: of every rank of the mesh. batch: the first global batch.
void claim_costs(Report& report, const Layout& layout, const data_parallel::StrategyOptions& strategy, int shard_size,
                 const std::vector<RankCounts>& counts, const GlobalBatch& batch);

}  // namespace ref5d::seq_context_parallel
