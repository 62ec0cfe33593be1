#include "04_seq_context_parallel/experiments.h"

#include "common/app/experiment_list.h"

namespace ref5d::seq_context_parallel {

namespace {
constexpr ExperimentEntry<Experiment> kExperiments[] = {{"balance", balance_experiment},
                                                        {"overlap", overlap_experiment, true},
                                                        {"compare", compare_experiment},
                                                        {"length", length_experiment}};
}  // namespace

std::vector<std::string> experiment_names() { return names_of(kExperiments); }

void run_experiments(const std::string& name, Experiment& experiment) { run_named(kExperiments, name, experiment); }

std::vector<OutputFile> virtual_traces(const std::string& name, const std::string& prefix) {
  std::vector<OutputFile> files;
  const auto add = [&](const char* experiment, std::vector<OutputFile> (*traces)(const std::string&)) {
    if (name != experiment && name != "all") return;
    for (OutputFile& file : traces(prefix)) files.push_back(std::move(file));
  };
  add("balance", balance_traces);
  add("overlap", overlap_traces);
  return files;
}

}  // namespace ref5d::seq_context_parallel
