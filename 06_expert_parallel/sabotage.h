// The classic mistakes that this lesson can plant, each of which a check must notice.
#pragma once

#include <string>
#include <vector>

#include "06_expert_parallel/lesson.h"
#include "common/app/command_line.h"

namespace ref5d::expert_parallel {

struct Sabotage {
  std::string name;
  std::string breaks;  // what goes wrong, and the row of the bug bank
  const char* axis;    // along which it needs several ranks: ep, tp or cp
  // Changes the options and the lesson to what the mistake needs to show, where the user did not say otherwise. InputError if
  // it cannot show.
  void (*prepare)(Options&, Lesson&, const CommandLine&);
  // Plants the mistake in the run under test; the baseline stays right.
  void (*plant)(Lesson&, int ep);
};

[[nodiscard]] const std::vector<Sabotage>& sabotages();
// Throws InputError, listing the names, if there is none called so.
[[nodiscard]] const Sabotage& find_sabotage(const std::string& name);

}  // namespace ref5d::expert_parallel
