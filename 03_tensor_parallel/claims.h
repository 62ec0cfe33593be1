// What tensor parallelism costs, as formulas, beside what the ledgers counted.
#pragma once

#include <vector>

#include "03_tensor_parallel/run.h"
#include "common/app/options.h"
#include "common/verify/report.h"

namespace ref5d::tensor_parallel {

// Parameters that a rank of so many holds: matrices cut, norms and row-parallel biases whole, kv heads as its query heads need.
[[nodiscard]] std::int64_t parameters_of_rank(const GptConfig& model, int ranks, int rank);

// What the axis sends in one step, by what it is for: all-reduces of one rank, and bytes of all ranks of all replicas together.
struct PhaseTraffic {
  const char* phase;
  std::int64_t calls, bytes;
};
[[nodiscard]] std::vector<PhaseTraffic> expected_traffic(const Options& options, const GptConfig& model, int ranks,
                                                         int replicas, const std::string& strategy);

// Adds the claims to the report, which has every rank's memory and the traffic. bytes_per_layer: of every rank of the mesh,
// what a layer kept of one micro-batch; empty without steps.
void claim_costs(Report& report, const Options& options, const Lesson& lesson, const World& world, const Mesh& mesh,
                 int shard_size, const std::vector<std::int64_t>& bytes_per_layer);

}  // namespace ref5d::tensor_parallel
