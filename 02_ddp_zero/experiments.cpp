#include "02_ddp_zero/experiments.h"

#include "common/app/experiment_list.h"

namespace ref5d::data_parallel {

namespace {
constexpr ExperimentEntry<Experiment> kExperiments[] = {{"compare", compare_experiment},
                                                        {"buckets", buckets_experiment},
                                                        {"overlap", overlap_experiment, true},
                                                        {"calculator", calculator_experiment}};
}  // namespace

std::vector<std::string> experiment_names() { return names_of(kExperiments); }

void run_experiments(const std::string& name, Experiment& experiment) { run_named(kExperiments, name, experiment); }

}  // namespace ref5d::data_parallel
