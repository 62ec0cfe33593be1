// What tensor parallelism costs beside what the ledgers counted.
#pragma once

#include <cstdint>
#include <vector>

#include "02_ddp_zero/strategy.h"
#include "common/app/options.h"
#include "common/comm/mesh.h"
#include "common/comm/world.h"
#include "common/verify/report.h"

namespace ref5d::tensor_parallel {

// What was counted on one rank.
struct RankCounts {
  std::int64_t parameters = 0;       // of the model that was trained, before ZeRO
  std::int64_t linear_flops = 0;     // of a step
  std::int64_t bytes_per_layer = 0;  // that a layer kept of one micro-batch
};

// Adds the claims to the report, which has every rank's memory and the traffic. shard_size: over how many
// replicas hsdp shards; of the other strategies, how many there are. counts: of every rank of the mesh.
void claim_costs(Report& report, const Options& options, const data_parallel::StrategyOptions& strategy, const World& world,
                 const Mesh& mesh, int shard_size, const std::vector<RankCounts>& counts);

}  // namespace ref5d::tensor_parallel
