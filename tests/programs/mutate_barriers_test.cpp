// The script that takes barriers away, where it has none to take. What it finds of the others is CI's to say, since it builds
// the kernels anew.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "common/device/error.h"
#include "tests/support/io_testing.h"
#include "tests/support/program_testing.h"

namespace ref5d::testing {
namespace {

class MutateBarriers : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(REF5D_SOURCE_DIR "/.git")) GTEST_SKIP() << "it needs a git clone";
  }
  [[nodiscard]] static Outcome mutate(std::string_view arguments) {
    return run_binary("../../tests/mutate_barriers", words(arguments));
  }
};

TEST_F(MutateBarriers, WithoutABarrierThereIsNothingToBuild) {
  const Outcome run = mutate("common/kernels/adamw.cu common/kernels/gelu.cu");
  EXPECT_EQ(run.exit_status, kExitOk) << run.description();
  EXPECT_EQ(run.out, "0 barriers to try\n");
}

TEST_F(MutateBarriers, SaysWhatIsWrongWithItsArguments) {
  const auto refused = [](std::string_view arguments, const std::string& reason) {
    const Outcome run = mutate(arguments);
    EXPECT_EQ(run.exit_status, kExitBadInput) << run.description();
    EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << run.err;
    expect_contains(run.err, reason);
    EXPECT_EQ(run.out, "");
  };
  refused("--changed", "--changed needs a commit");
  refused("--changed nonsense", "nonsense is no commit");
  refused("--changed HEAD common/kernels/sort.cu", "not both");
  refused("--faster", "unknown flag --faster");
  refused("common/kernels/cuda/gemm_tensor_core.cu", "gemm_tensor_core.cu is none of the kernels' sources");
}

}  // namespace
}  // namespace ref5d::testing
