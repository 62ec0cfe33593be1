// Which rank has which experts: contiguous shares over the ranks of an axis, in the order of their numbers, sizes that differ
// by one at most.
//
//   64 experts over 8 ranks:   0..7 | 8..15 | 16..23 | ... | 56..63      expert 12 is on rank 1, expert 60 on rank 7
#pragma once

#include <cstdint>

#include "03_tensor_parallel/cut.h"

namespace ref5d::expert_parallel {

using tensor_parallel::Range;

// The experts of a rank.
[[nodiscard]] Range experts_of(std::int64_t experts, int ranks, int rank);
// The rank of an expert.
[[nodiscard]] int rank_of_expert(std::int64_t expert, std::int64_t experts, int ranks);

}  // namespace ref5d::expert_parallel
