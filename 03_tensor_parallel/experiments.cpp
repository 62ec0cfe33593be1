#include "03_tensor_parallel/experiments.h"

#include "common/app/experiment_list.h"

namespace ref5d::tensor_parallel {

namespace {
constexpr ExperimentEntry<Experiment> kExperiments[] = {{"numbers", numbers_experiment},
                                                        {"pairs", pairs_experiment},
                                                        {"loss", loss_experiment},
                                                        {"overlap", overlap_experiment, true},
                                                        {"calculator", calculator_experiment}};
}  // namespace

std::vector<std::string> experiment_names() { return names_of(kExperiments); }

void run_experiments(const std::string& name, Experiment& experiment) { run_named(kExperiments, name, experiment); }

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

}  // namespace ref5d::tensor_parallel
