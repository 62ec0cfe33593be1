// The lesson's own flags, beside the common ones.
#pragma once

#include <string>

#include "04_seq_context_parallel/lesson.h"
#include "common/app/command_line.h"

namespace ref5d::seq_context_parallel {

struct Flags {
  Lesson lesson;
  std::int64_t ulysses_size = 0;
  bool overlap = true;
  std::string experiment = "none", virtual_trace;
  double link_mbit = 10000, link_latency_us = 20;
};

// Both must outlive line.parse.
void declare(CommandLine& line, Flags& flags);
// What later lessons take of lessons 02 to 04: how layers are cut, and how the ranks that share weights work together.
void declare_stage(CommandLine& line, Lesson& stage, std::int64_t& ulysses_size);
// After parse: sets the size of the axis that all ranks are along where none was given (cp; with --sp tp), and completes
// flags.lesson, and `options` by what a sabotage needs to show. InputError for a flag that means nothing beside the others,
// which would be ignored, and for a sabotage that cannot show.
void settle(const CommandLine& line, Options& options, Flags& flags, int ranks);

}  // namespace ref5d::seq_context_parallel
