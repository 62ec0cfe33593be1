#include "04_seq_context_parallel/experiments.h"

#include "common/app/experiment_list.h"

namespace ref5d::seq_context_parallel {

std::vector<std::string> experiment_names() { return {"none", "all"}; }

void run_experiments(const std::string&, Experiment&) {}
std::vector<OutputFile> virtual_traces(const std::string&, const std::string&) { return {}; }

}  // namespace ref5d::seq_context_parallel
