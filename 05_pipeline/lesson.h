// What this lesson's flags choose.
#pragma once

#include "04_seq_context_parallel/lesson.h"
#include "05_pipeline/runtime.h"
#include "05_pipeline/schedules.h"

namespace ref5d::pipeline {

struct Sabotage;

struct Lesson {
  ScheduleOptions schedule;
  PipelineOptions pipeline;
  seq_context_parallel::Lesson stage;  // how a stage's layers are cut, and the strategy of the ranks that share a stage
  const Sabotage* sabotage = nullptr;
};

}  // namespace ref5d::pipeline
