// The lesson's own flags, beside the common ones.
#pragma once

#include <string>

#include "06_expert_parallel/lesson.h"
#include "common/app/command_line.h"

namespace ref5d::expert_parallel {

struct Flags {
  Lesson lesson;
  std::int64_t micro_batches = 0, chunks = 2, ulysses_size = 0;
  bool overlap = true;
  std::string route_replay = "auto";
  std::string experiment = "none";
  std::string virtual_trace;
  double link_mbit = 10000, link_latency_us = 20;
};

// Both must outlive line.parse.
void declare(CommandLine& line, Flags& flags);
// After parse: completes flags.lesson, and `options` by what a sabotage needs to show. InputError for a flag that means nothing
// beside the others, which would be ignored, for what does not work together, and for a sabotage that cannot show.
void settle(const CommandLine& line, Options& options, Flags& flags, int ranks);

}  // namespace ref5d::expert_parallel
