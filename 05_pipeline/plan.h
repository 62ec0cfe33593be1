// Everything about a run of a schedule that all ranks know alike.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "05_pipeline/exchanges.h"
#include "05_pipeline/stages.h"

namespace ref5d::pipeline {

struct Plan {
  Schedule schedule;
  Assignment assignment;
  Exchanges exchanges;               // checked: nobody waits in vain
  std::vector<std::int64_t> layers;  // of each stage
  std::vector<Units> units;          // of each stage

  // Several stages, so that boundaries are somewhere between layers.
  [[nodiscard]] bool is_cut() const { return units.size() > 1; }
  // Of the embedding's stage and the head's: whether a tied weight is on two ranks, each of which has one end alone.
  [[nodiscard]] bool ends_apart() const { return assignment.holders_of(0) != assignment.holders_of(schedule.stages - 1); }
};

// For a model of so many layers. stage_layers: as in layers_of_stages. InputError where schedule or model do not allow it.
[[nodiscard]] std::shared_ptr<const Plan> make_plan(Schedule schedule, std::int64_t layers,
                                                    const std::string& stage_layers = "");

}  // namespace ref5d::pipeline
