#include "01_grad_accum/experiments.h"

#include <algorithm>

namespace ref5d::grad_accum {

namespace {

struct Experiment {
  const char* name;
  void (*run)(const Options&, Verdict&);
};
constexpr Experiment kExperiments[] = {{"recompute", recompute_experiment}, {"attention", attention_experiment},
                                       {"precision", precision_experiment}, {"fusion", fusion_experiment},
                                       {"batch", batch_experiment},         {"packing", packing_experiment}};

}  // namespace

std::vector<std::string> experiment_names() {
  std::vector<std::string> names{"none", "all"};
  for (const Experiment& e : kExperiments) names.emplace_back(e.name);
  return names;
}

void run_experiments(const std::string& name, const Options& options, Report& report) {
  for (const Experiment& e : kExperiments) {
    if (name != "all" && name != e.name) continue;
    Verdict verdict;
    e.run(options, verdict);
    report.checks.insert(report.checks.end(), verdict.checks().begin(), verdict.checks().end());
    report.claims.insert(report.claims.end(), verdict.claims().begin(), verdict.claims().end());
  }
}

}  // namespace ref5d::grad_accum
