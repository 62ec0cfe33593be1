// The single-device runs that a layout is compared with.
#pragma once

#include <functional>
#include <string>

#include "common/train/run_record.h"
#include "common/train/trainer.h"

namespace ref5d {

struct Baselines {
  RunRecord truth;         // fp64
  RunRecord own;           // in the dtype under test; empty for fp64
  std::int64_t steps = 0;  // how many steps both took, which is how many are compared
  std::string why_fewer;   // a line if that is fewer than were asked for, else empty
};

// run(dtype, steps) trains on one device. In fp32 and bf16 rounding grows with every step, and in the end the run in `dtype` is
// so far from the fp64 run that it is no yardstick (verify/yardstick.h): then both run again with half the steps.
[[nodiscard]] Baselines run_baselines(Dtype dtype, std::int64_t steps,
                                      const std::function<RunRecord(Dtype, std::int64_t)>& run);

}  // namespace ref5d
