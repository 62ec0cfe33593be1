// The lesson's own flags, beside the common ones.
#pragma once

#include <string>

#include "03_tensor_parallel/run.h"
#include "common/app/command_line.h"

namespace ref5d::tensor_parallel {

struct Flags {
  Lesson lesson;
  std::string experiment = "none", virtual_trace;
  double link_mbit = 10000, link_latency_us = 20;
};

// Both must outlive line.parse.
void declare(CommandLine& line, Flags& flags);
// After parse: sets the size of the tp axis where neither it nor dp was given (all ranks), and completes flags.lesson, and
// `options` by what a sabotage needs to show. InputError for a flag that means nothing beside the others, which would be
// ignored, and for a sabotage that cannot show.
void settle(const CommandLine& line, Options& options, Flags& flags, int ranks);

}  // namespace ref5d::tensor_parallel
