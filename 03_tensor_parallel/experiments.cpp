#include "03_tensor_parallel/experiments.h"

#include <fmt/core.h>

#include "common/device/device.h"

namespace ref5d::tensor_parallel {

namespace {
struct Entry {
  const char* name;
  void (*run)(Experiment&);
};
constexpr Entry kExperiments[] = {{"numbers", numbers_experiment},
                                  {"pairs", pairs_experiment},
                                  {"loss", loss_experiment},
                                  {"overlap", overlap_experiment},
                                  {"calculator", calculator_experiment}};
}  // namespace

std::vector<std::string> experiment_names() {
  std::vector<std::string> names{"none"};
  for (const Entry& e : kExperiments) names.emplace_back(e.name);
  names.emplace_back("all");
  return names;
}

TrafficCount sent_by_axis(Experiment& e) {
  TrafficCount mine;
  for (const auto& [key, count] : e.world.traffic().counts())
    if (key.axis == "tp") mine += count;
  TrafficCount all = mine;
  all.wire = 0;
  for (const Bytes& of_rank : gather_on_host(e.mesh["tp"].group(), to_bytes(static_cast<double>(mine.wire))))
    all.wire += static_cast<std::int64_t>(to_number(of_rank));
  return all;
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

}  // namespace ref5d::tensor_parallel
