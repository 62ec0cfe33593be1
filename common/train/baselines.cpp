#include "common/train/baselines.h"

#include <fmt/format.h>

#include "common/verify/yardstick.h"

namespace ref5d {

Baselines run_baselines(Dtype dtype, std::int64_t steps, const std::function<RunRecord(Dtype, std::int64_t)>& run) {
  Baselines b;
  for (b.steps = steps;; b.steps /= 2) {
    b.truth = run(Dtype::kFp64, b.steps);
    if (dtype == Dtype::kFp64) return b;
    b.own = run(dtype, b.steps);
    const double error = yardstick_error(b.own.values, b.truth.values);
    if (error <= kMostYardstickError) return b;
    if (b.steps == 1) {
      b.why_fewer =
          fmt::format("comparing one step, by a poor yardstick: the {} run on one device is {:.0f}% away from fp64 after it",
                      dtype_name(dtype), 100 * error);
      return b;
    }
    b.why_fewer = fmt::format(
        "comparing the first {} of {} steps: after {} the {} run on one device is {:.0f}% away from fp64, "
        "too far for a yardstick",
        b.steps / 2, steps, b.steps, dtype_name(dtype), 100 * error);
  }
}

}  // namespace ref5d
