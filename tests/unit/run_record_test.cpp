// What a run keeps of its steps.
#include "common/train/run_record.h"

#include <gtest/gtest.h>

#include "common/app/settings.h"
#include "tests/support/expert_testing.h"

namespace ref5d::testing {
namespace run_record_test {

TEST(RunRecords, ReportTheLoadOfEvenlySpacedSteps) {
  EXPECT_EQ(reported_steps(0), (std::vector<std::int64_t>{}));
  EXPECT_EQ(reported_steps(3), (std::vector<std::int64_t>{0, 1, 2}));
  for (const std::int64_t steps : {100, 101, 150, 1000, 123'457}) {
    const std::vector<std::int64_t> all = reported_steps(steps);
    ASSERT_EQ(all.size(), 100U) << steps;
    EXPECT_EQ(all.front(), 0);
    EXPECT_EQ(all.back(), steps - 1);
    for (std::size_t i = 1; i < all.size(); ++i) EXPECT_LT(all[i - 1], all[i]) << steps;
  }
}

// The load of the others is in the sum alone.
TEST(RunRecords, DoNotGrowWithLoads) {
  Options o = expert_options();
  o.micro_batch = 1;
  o.seq = 4;
  const TrainerOptions settings = trainer_options(o, model_config(o), 1, 1);
  constexpr std::int64_t kSteps = 130;
  const Dataset data(expert_rows(settings.model, "none", kSteps));
  Trainer trainer(settings, data);
  const RunRecord record = record_run(trainer, kSteps, 0);
  std::int64_t kept = 0;
  for (const StepResult& step : record.steps) kept += step.router_load.empty() ? 0 : 1;
  EXPECT_EQ(kept, 100);
  ASSERT_EQ(record.router_load.size(), 2U * 3 * 8);
  double choices = 0;
  for (std::size_t e = 0; e < 8; ++e) choices += record.router_load[e];
  EXPECT_EQ(choices, kSteps * 4 * 2);
  EXPECT_EQ(record.aux_losses().size(), static_cast<std::size_t>(kSteps));
  o.moe.aux_coefficient = 0;
  Trainer without(trainer_options(o, model_config(o), 1, 1), data);
  EXPECT_EQ(record_run(without, 2, 2).values.aux_losses.size(), 0U);
}

}  // namespace run_record_test
}  // namespace ref5d::testing
