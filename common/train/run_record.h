// What a run leaves for comparison and for the report.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "common/device/flops_ledger.h"
#include "common/device/memory_ledger.h"
#include "common/train/trainer.h"
#include "common/verify/run_values.h"

namespace ref5d {

// Everything that a comparison needs of a run.
struct RunRecord {
  std::vector<StepResult> steps;    // with the load of those in reported_steps alone
  std::vector<double> router_load;  // over all steps
  RunValues values;                 // of the compared steps
  std::vector<std::pair<MemoryCategory, std::int64_t>> peak_bytes, current_bytes;  // peaks over the steps
  FlopsLedger flops_per_step;                                                      // of the first step
  [[nodiscard]] std::vector<double> losses() const;                                // of all steps
  [[nodiscard]] std::vector<double> aux_losses() const;                            // the same; none where no such loss is on
  [[nodiscard]] double median_step_ms() const;
  [[nodiscard]] std::int64_t peak(MemoryCategory category) const;
};
// Steps whose load is reported: all of a short run, else evenly spaced ones with both ends.
[[nodiscard]] std::vector<std::int64_t> reported_steps(std::int64_t steps);
// Runs `steps` steps. Of the first `compared` of them it keeps what a comparison needs: losses, norms, the first step's
// gradients, the weights before them and after them. on_step sees each result as it happens.
[[nodiscard]] RunRecord record_run(Trainer& trainer, std::int64_t steps, std::int64_t compared,
                                   const std::function<void(std::int64_t, const StepResult&)>& on_step = {});

}  // namespace ref5d
