#include "02_ddp_zero/experiments.h"

#include <fmt/core.h>

#include "common/device/device.h"

namespace ref5d::data_parallel {

namespace {
struct Entry {
  const char* name;
  void (*run)(Experiment&);
};
constexpr Entry kExperiments[] = {{"compare", compare_experiment},
                                  {"buckets", buckets_experiment},
                                  {"overlap", overlap_experiment},
                                  {"calculator", calculator_experiment}};
}  // namespace

std::vector<std::string> experiment_names() {
  std::vector<std::string> names{"none"};
  for (const Entry& e : kExperiments) names.emplace_back(e.name);
  names.emplace_back("all");
  return names;
}

void run_experiments(const std::string& name, Experiment& experiment) {
  for (const Entry& e : kExperiments) {
    if (name != "all" && name != e.name) continue;
    if (name == "all" && e.run == overlap_experiment && Device::mode() == "cuda") {
      if (experiment.prints()) fmt::print("\noverlap: left out, since it replays times that MODE=cpu records\n");
      continue;
    }
    e.run(experiment);
  }
}

}  // namespace ref5d::data_parallel
