#include "05_pipeline/plan.h"

namespace ref5d::pipeline {

std::shared_ptr<const Plan> make_plan(Schedule schedule, std::int64_t layers, const std::string& stage_layers) {
  Assignment assignment(schedule);
  Exchanges exchanges = make_exchanges(schedule);
  expect_no_deadlock(schedule, exchanges);
  const std::vector<std::int64_t> counts = layers_of_stages(layers, schedule.stages, stage_layers);
  return std::make_shared<const Plan>(
      Plan{std::move(schedule), std::move(assignment), std::move(exchanges), counts, units_of_stages(counts)});
}

}  // namespace ref5d::pipeline
