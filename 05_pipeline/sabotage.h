// The classic mistakes that this lesson can plant, each of which a check must notice.
#pragma once

#include <string>
#include <vector>

#include "05_pipeline/lesson.h"
#include "05_pipeline/plan.h"
#include "common/app/command_line.h"

namespace ref5d::pipeline {

struct Sabotage {
  std::string name;
  std::string breaks;  // what goes wrong, and the row of the bug bank
  int dp;              // replicas that it needs
  // Changes the options and the lesson to what the mistake needs to show, where the user did not say otherwise. InputError if
  // it cannot show.
  void (*prepare)(Options&, Lesson&, const CommandLine&);
  // Plants the mistake in the run under test; the baseline stays right.
  void (*plant)(Lesson&);
};

[[nodiscard]] const std::vector<Sabotage>& sabotages();
// Throws InputError, listing the names, if there is none called so.
[[nodiscard]] const Sabotage& find_sabotage(const std::string& name);

// The plan with each rank's receives in the order in which it needs them, though its peers send in the order in which they are
// done: where these differ, one message is taken for another (pitfall P37).
[[nodiscard]] std::shared_ptr<const Plan> with_receives_by_need(const Plan& plan);

}  // namespace ref5d::pipeline
