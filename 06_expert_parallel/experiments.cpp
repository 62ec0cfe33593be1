#include "06_expert_parallel/experiments.h"

#include "common/app/experiment_list.h"

namespace ref5d::expert_parallel {

namespace {

constexpr ExperimentEntry<Experiment> kExperiments[] = {
    {"numbers", numbers_experiment},   {"hot-expert", hot_expert_experiment}, {"ways", ways_experiment},
    {"capacity", capacity_experiment}, {"overlap", overlap_experiment, true}, {"repeat", repeat_experiment},
};

}  // namespace

Lesson lesson_of_own(const std::string& dispatcher) {
  Lesson lesson;
  lesson.expert.dispatcher = dispatcher;
  return lesson;
}

std::vector<std::string> experiment_names() { return names_of(kExperiments); }

void run_experiments(const std::string& name, Experiment& experiment) { run_named(kExperiments, name, experiment); }

}  // namespace ref5d::expert_parallel
