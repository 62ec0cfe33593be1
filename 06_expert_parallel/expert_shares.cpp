#include "06_expert_parallel/expert_shares.h"

namespace ref5d::expert_parallel {

Range experts_of(std::int64_t experts, int ranks, int rank) { return tensor_parallel::share_of(experts, ranks, rank); }

int rank_of_expert(std::int64_t expert, std::int64_t experts, int ranks) {
  int rank = 0;
  while (experts_of(experts, ranks, rank).end <= expert) ++rank;
  return rank;
}

}  // namespace ref5d::expert_parallel
