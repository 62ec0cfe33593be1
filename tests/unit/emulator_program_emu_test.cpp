// 01_grad_accum under the emulator, at a size at which that takes seconds.
#include <gtest/gtest.h>

#include "common/app/program.h"
#include "common/io/json.h"
#include "tests/support/io_testing.h"
#include "tests/support/program_testing.h"

namespace ref5d::testing {
namespace {

constexpr char kSmall[] =
    " --layers 1 --hidden 36 --heads 6 --ffn 50 --seq 37 --vocab 261 --micro-batch 1 --grad-accum 3 --steps 2"
    " --recompute selective --dropout 0.1 --quiet";

Outcome run_emulated(const std::string& flags, const std::string& seed) {
  RunOptions options;
  options.environment = {"REF5D_EMU_SEED=" + seed};
  return run_binary("01_grad_accum", words(flags + kSmall), options);
}

class EmulatorProgram : public ::testing::TestWithParam<const char*> {};

TEST_P(EmulatorProgram, PassesItsChecksUnderEverySeed) {
  for (const char* seed : {"0", "1", "2"}) {
    const TempDir dir;
    const Outcome run = run_emulated(std::string(GetParam()) + " --json " + dir.path("r.json"), seed);
    ASSERT_EQ(run.exit_status, 0) << run.description();
    const Report report = read_report(dir.path("r.json"));
    EXPECT_EQ(report.mode, "emu");
    EXPECT_EQ(failing(report), std::vector<std::string>{});
    EXPECT_GT(report.checks.size(), 20u);
  }
}
INSTANTIATE_TEST_SUITE_P(Flags, EmulatorProgram,
                         ::testing::Values("--dtype fp64 --kv-heads 2", "--dtype fp32 --model tiny-gpt2 --kv-heads 6",
                                           "--dtype bf16 --kv-heads 3 --gemm hand --attention naive"));

TEST(EmulatorProgramInput, ASeedThatIsNoNumberIsOneLine) {
  for (const char* seed : {"seven", "-1", "1.5", " 3"})
    expect_one_error(run_emulated("--kv-heads 2", seed), 2, {"REF5D_EMU_SEED", seed});
}

}  // namespace
}  // namespace ref5d::testing
