// How experts are shared out, and the mistakes that can be planted.
#pragma once

#include <string>
#include <vector>

namespace ref5d::expert_parallel {

// Mistakes to show (--sabotage).
struct Faults {
  bool router_unsummed = false;  // tp: a rank keeps its own rows' part of the router's gradient (P50)
  bool aux_per_rank = false;     // each rank balances its own tokens (P48)
  bool drop_by_rank = false;     // each rank fills its share of an expert's capacity by its own order (P53)
  bool rows_by_sender = false;   // experts take rows in the order in which they arrived
  bool other_weights = false;    // a token's weights are renormalised where they should not be, or the reverse (P51)
  bool own_load = false;         // correction biases follow the load of a rank's own tokens
};

struct ExpertParallelOptions {
  std::string dispatcher = "alltoall";  // alltoall | hierarchical | allgather
  bool expert_tp = false;  // tp cuts every expert; else each rank along tp takes whole experts and some of the tokens
  bool overlap = true;     // shared experts on a stream of their own
  Faults faults;
};

[[nodiscard]] inline std::vector<std::string> dispatcher_names() { return {"alltoall", "hierarchical", "allgather"}; }

}  // namespace ref5d::expert_parallel
