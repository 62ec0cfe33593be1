// The script that runs the tests, and what it says of those that had nothing to do.
#include <gtest/gtest.h>

#include "common/device/error.h"
#include "tests/support/io_testing.h"
#include "tests/support/program_testing.h"

namespace ref5d::testing {
namespace {

Outcome run_parallel(const std::string& ranks, const std::string& filter) {
  return run_binary("../../tests/run", {REF5D_BUILD_DIR "/tests/parallel@" + ranks + "=" + filter});
}

// One rank has no experts elsewhere: the first test finds no layout, the second needs none, the third asks for two ranks.
TEST(TestRun, ATestThatHasNothingToTryHasNotPassed) {
  const Outcome run =
      run_parallel("1", "ExpertAxes.GoldenCases:PipelineRuntime.T6_AWeight*:ExpertParallel.P56_OtherRanksTokensDoNotMatter");
  EXPECT_EQ(run.exit_status, kExitOk) << run.out << run.description();
  expect_contains(run.out, "\n1 passed, 0 failed\n");
  EXPECT_EQ(run.out.find("not run here"), std::string::npos) << run.out;  // they run on other numbers of ranks
}

TEST(TestRun, NothingButSkippedTestsIsNoSuccess) {
  const Outcome run = run_parallel("1", "ExpertAxes.GoldenCases");
  EXPECT_EQ(run.exit_status, kExitCheckFailed) << run.out << run.description();
  expect_contains(run.out, "\n0 passed, 0 failed\n");
}

}  // namespace
}  // namespace ref5d::testing
