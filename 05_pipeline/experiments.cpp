#include "05_pipeline/experiments.h"

#include "common/app/experiment_list.h"

namespace ref5d::pipeline {

namespace {
constexpr ExperimentEntry<Experiment> kPipelineExperiments[] = {{"schedules", schedules_experiment},
                                                                {"zero-bubble", zero_bubble_experiment},
                                                                {"deadlock", deadlock_experiment},
                                                                {"bubble", bubble_experiment, true},
                                                                {"traffic", traffic_experiment}};
}  // namespace

std::vector<std::string> experiment_names() { return names_of(kPipelineExperiments); }

void run_experiments(const std::string& name, Experiment& experiment) { run_named(kPipelineExperiments, name, experiment); }

}  // namespace ref5d::pipeline
