// What tensor parallelism costs, as formulas.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/app/cost_claims.h"
#include "common/app/options.h"
#include "common/model/config.h"

namespace ref5d::tensor_parallel {

// Parameters that a rank of so many holds: matrices cut; norms, row-parallel biases and learned positions whole; kv heads as
// its query heads need.
struct RankParameters {
  std::int64_t projections = 0;  // q, k and v of a layer, without biases
  std::int64_t matrices = 0;     // of a layer, these included
  std::int64_t head = 0;         // the output head's matrix, be it the embedding's or its own
  std::int64_t all = 0;          // of the model
};
[[nodiscard]] RankParameters parameters_of_rank(const GptConfig& model, int ranks, int rank);

// Flops of a rank's linear layers in one step: for each token and weight 2 in forward, and in backward 2 for the input's
// gradient and 2 for the weight's; and what --recompute does again. (Attention's depend on what the masks leave.)
[[nodiscard]] std::int64_t linear_flops_of_rank(const Options& options, const GptConfig& model, int ranks, int rank);

// What the axis sends in one step: all-reduces of rank 0, and bytes of all ranks of all replicas together.
[[nodiscard]] std::vector<PhaseTraffic> expected_traffic(const Options& options, const GptConfig& model, int ranks,
                                                         int replicas, const std::string& strategy);

// Of gradients that the axis's ranks have shares of: how often a step sums them (strategies that keep whole gradients once, the
// others after each micro-batch), and bytes of an element of what is summed (the step's sum, which is wide, or one of a
// micro-batch).
[[nodiscard]] std::int64_t shared_sums_per_step(const Options& options, const std::string& strategy);
[[nodiscard]] std::int64_t shared_gradient_bytes(const Options& options, const std::string& strategy);

}  // namespace ref5d::tensor_parallel
