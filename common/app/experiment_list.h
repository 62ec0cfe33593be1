// A lesson's side experiments, by name.
#pragma once

#include <fmt/core.h>

#include <string>
#include <vector>

#include "common/device/device.h"

namespace ref5d {

template <typename Experiment>
struct ExperimentEntry {
  const char* name;
  void (*run)(Experiment&);
  bool replays_times = false;  // that MODE=cpu alone records
};

// "none", theirs, "all".
template <typename Experiment, std::size_t kCount>
[[nodiscard]] std::vector<std::string> names_of(const ExperimentEntry<Experiment> (&entries)[kCount]) {
  std::vector<std::string> names{"none"};
  for (const auto& e : entries) names.emplace_back(e.name);
  names.emplace_back("all");
  return names;
}

// Runs the one called so, or all that run in this mode.
template <typename Experiment, std::size_t kCount>
void run_named(const ExperimentEntry<Experiment> (&entries)[kCount], const std::string& name, Experiment& experiment) {
  for (const auto& e : entries) {
    if (name != "all" && name != e.name) continue;
    if (name == "all" && e.replays_times && Device::mode() == "cuda") {
      if (experiment.prints()) fmt::print("\n{}: left out, since it replays times that MODE=cpu records\n", e.name);
      continue;
    }
    e.run(experiment);
  }
}

}  // namespace ref5d
