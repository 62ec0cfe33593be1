// Whether the same run gives the same bits every time (pitfall P55): an atomic sum would give others.
#include <fmt/format.h>

#include <set>

#include "06_expert_parallel/experiments.h"
#include "common/app/cost_claims.h"
#include "common/app/measure.h"
#include "common/app/settings.h"

namespace ref5d::expert_parallel {

void repeat_experiment(Experiment& e) {
  constexpr int kRuns = 40;
  std::set<std::string> fingerprints;
  for (int run = 0; run < kRuns; ++run) {
    Lesson lesson = e.lesson;
    lesson.sabotage = nullptr;
    const LayoutPlan plan = plan_layout(e.options, lesson, e.world, e.mesh);
    fingerprints.insert(measure("06_expert_parallel", plan.options, plan.settings, 2, e.world, e.mesh).fingerprint);
  }
  if (!e.world.is_root()) return;
  claim_equal(e.report, fmt::format("repeat: different weights, to the last bit, after 2 steps of {} runs", kRuns), 1,
              static_cast<std::int64_t>(fingerprints.size()), "", *fingerprints.begin());
}

}  // namespace ref5d::expert_parallel
