// 02_ddp_zero on one rank under the emulator, at a size at which that takes seconds.
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
  options.environment = {"REF5D_EMU_SEED=" + seed, "ASAN_OPTIONS=detect_leaks=0"};  // MPI leaks
  return run_binary("02_ddp_zero", words(flags + kSmall), options);
}

struct ProgramCase {
  const char* flags;
  const char* seed;  // besides 0
};
class EmulatorProgram : public ::testing::TestWithParam<ProgramCase> {};

TEST_P(EmulatorProgram, PassesItsChecksUnderSeeds) {
  for (const char* seed : {"0", GetParam().seed}) {
    const TempDir dir;
    const Outcome run = run_emulated(std::string(GetParam().flags) + " --json " + dir.path("r.json"), seed);
    ASSERT_EQ(run.exit_status, 0) << run.description();
    const Report report = read_report(dir.path("r.json"));
    EXPECT_EQ(report.mode, "emu");
    EXPECT_EQ(failing(report), std::vector<std::string>{});
    EXPECT_GT(report.checks.size(), 20u);
  }
}
INSTANTIATE_TEST_SUITE_P(Flags, EmulatorProgram,
                         ::testing::Values(ProgramCase{"--dtype fp64 --kv-heads 2", "1"},
                                           ProgramCase{"--dtype fp32 --model tiny-gpt2 --kv-heads 6", "2"},
                                           ProgramCase{"--dtype bf16 --kv-heads 3 --gemm hand --attention naive", "3"}));

TEST(EmulatorProgramInput, ASeedThatIsNoNumberIsOneLine) {
  for (const char* seed : {"seven", "-1", "1.5", " 3"})
    expect_one_error(run_emulated("--kv-heads 2", seed), 2, {"REF5D_EMU_SEED", seed});
}

}  // namespace
}  // namespace ref5d::testing
