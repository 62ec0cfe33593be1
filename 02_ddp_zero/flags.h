// The lesson's own flags, beside the common ones.
#pragma once

#include <string>

#include "02_ddp_zero/ddp_zero.h"
#include "common/app/command_line.h"

namespace ref5d::data_parallel {

// What the flags say, as text where their units are not the program's.
struct Flags {
  Lesson lesson;
  double bucket_mb = lesson.strategy.bucket_bytes / 0x1p20;
  std::string unit = "block";
  std::string experiment = "none", virtual_trace;
  double link_mbit = 10000, link_latency_us = 20;
};

// Both must outlive line.parse.
void declare(CommandLine& line, Flags& flags);
// After parse: completes flags.lesson, and `options` by what a sabotage needs to show. InputError for a flag that means nothing
// beside the others, which would be ignored, and for a sabotage that cannot show.
void settle(const CommandLine& line, Options& options, Flags& flags, int ranks);

}  // namespace ref5d::data_parallel
