// The lesson's own flags, beside the common ones.
#pragma once

#include <string>

#include "05_pipeline/lesson.h"
#include "common/app/command_line.h"

namespace ref5d::pipeline {

struct Flags {
  Lesson lesson;
  std::int64_t micro_batches = 0, chunks = 2, group = 0, ulysses_size = 0;
  bool overlap = true;
  std::string print_schedule;  // empty, grid or csv
  std::string experiment = "none", virtual_trace;
  double link_mbit = 10000, link_latency_us = 20;
};

// Both must outlive line.parse.
void declare(CommandLine& line, Flags& flags);
// After parse: the schedule's sizes. ranks: of the world, all of which are along pp where no axis was given.
void settle_schedule(const CommandLine& line, Options& options, Flags& flags, int ranks);
// Then: completes flags.lesson, and `options` by what a sabotage needs to show. InputError for a flag that means nothing beside
// the others, which would be ignored, for what does not work together, and for a sabotage that cannot show.
void settle(const CommandLine& line, Options& options, Flags& flags, int ranks);

// InputError for a strategy that does not work with the schedule.
void check_strategy(const Lesson& lesson);

}  // namespace ref5d::pipeline
