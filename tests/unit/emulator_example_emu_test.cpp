// The example of a kernel of one's own under the emulator.
#include <gtest/gtest.h>

#include "common/device/error.h"
#include "tests/support/io_testing.h"
#include "tests/support/program_testing.h"

namespace ref5d::testing {
namespace {

TEST(EmulatorExample, MyKernelIsRightAndWithoutItsBarrierReported) {
  const Outcome whole = run_binary("emulate_my_kernel", {});
  EXPECT_EQ(whole.exit_status, kExitOk) << whole.description();
  EXPECT_EQ(whole.out, "right, and nothing to report, under 10 seeds\n");
  const Outcome broken = run_binary("emulate_my_kernel", {"--broken"});
  EXPECT_EQ(broken.exit_status, kExitCheckFailed) << broken.description();
  expect_contains(broken.out, "in transpose<true>, block (0,0,0), thread ");
  expect_contains(broken.out, "of shared memory at common/tools/emulate/my_kernel.cu:");
}

}  // namespace
}  // namespace ref5d::testing
