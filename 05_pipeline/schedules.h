// The published schedules, each as a function from sizes to data.
#pragma once

#include <string>
#include <vector>

#include "05_pipeline/schedule.h"

namespace ref5d::pipeline {

// P ranks, M micro-batches, v chunks of layers on each rank.
struct ScheduleOptions {
  std::string name = "1f1b";  // gpipe | 1f1b | interleaved | zb-h1 | zb-h2 | zb-v | dualpipe | dualpipev | custom
  int ranks = 1, micro_batches = 1;
  int chunks = 2;  // interleaved
  // Interleaved: micro-batches that pass a chunk before the next chunk has them. 0: groups that are as even as they can be, of
  // P or a little more; one, where there are fewer than P. Smaller ones work, but make ranks wait.
  int group = 0;
  std::string file;  // custom: a CSV
};

[[nodiscard]] std::vector<std::string> schedule_names();
// InputError, saying what would be right, where the schedule is not defined for these sizes. What it returns passed Assignment.
[[nodiscard]] Schedule make_schedule(const ScheduleOptions& options);

}  // namespace ref5d::pipeline
