#include "03_tensor_parallel/experiments.h"

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

void run_experiments(const std::string& name, Experiment& experiment) {
  for (const Entry& e : kExperiments)
    if (name == "all" || name == e.name) e.run(experiment);
}

}  // namespace ref5d::tensor_parallel
