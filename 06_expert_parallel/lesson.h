// What this lesson's flags choose.
#pragma once

#include <string>

#include "04_seq_context_parallel/lesson.h"
#include "05_pipeline/lesson.h"
#include "06_expert_parallel/expert_options.h"

namespace ref5d::expert_parallel {

struct Sabotage;

struct Lesson {
  ExpertParallelOptions expert;
  pipeline::Lesson pipeline;    // the schedule, how layers are cut, and the strategies of the ranks that share them
  std::string routes = "auto";  // what chooses: auto, own or a file (--route-replay)
  const Sabotage* sabotage = nullptr;

  [[nodiscard]] bool routes_from_file() const { return routes != "auto" && routes != "own"; }
};

}  // namespace ref5d::expert_parallel
