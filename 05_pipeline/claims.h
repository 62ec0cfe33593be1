// What a schedule costs beside what the ledgers counted.
#pragma once

#include <cstdint>
#include <vector>

#include "05_pipeline/cell_records.h"
#include "05_pipeline/costs.h"
#include "common/verify/report.h"

namespace ref5d::pipeline {

// What was counted on one rank.
struct RankCounts {
  std::int64_t linear_flops = 0;  // of the first step
  // Cells of the first run after which the ledger held other than what the schedule keeps then.
  std::int64_t differing_cells = 0;
  // The most that it held after a cell: of activations, and, where the rank has one stage, what its first forward added.
  std::int64_t peak_bytes = 0, forward_bytes = 0;
};
[[nodiscard]] RankCounts count(const Plan& plan, int pp_rank, const std::vector<CellMemory>& memory, std::int64_t linear_flops);

// Adds the claims to the report, which has every rank's memory and the traffic. shard_size: over how many ranks state is
// sharded. counts: of every rank of the mesh.
void claim_costs(Report& report, const Layout& layout, const data_parallel::StrategyOptions& strategy, int shard_size,
                 const std::vector<RankCounts>& counts);

}  // namespace ref5d::pipeline
