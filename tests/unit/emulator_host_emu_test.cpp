// AddressSanitizer, and UBSan where it is asked for, watch the host's code, and keep it from device memory.
#include <gtest/gtest.h>

#include <climits>

#include "common/device/device.h"
#include "tests/support/kernel_testing.h"

namespace ref5d::testing {

// A kernel with locals of 100 KB.
void launch_deep(Stream& stream);

namespace {

#ifdef REF5D_ASAN
TEST(EmulatorHostDeathTest, TheHostCannotReadDeviceMemory) {
  const Tensor x = device_tensor({1, 2, 3}, {3}, Dtype::kFp64);
  device().synchronize();
  volatile double sum = 0;
  EXPECT_DEATH(sum = sum + x.data<double>()[1], "use-after-poison");
}

TEST(EmulatorHostDeathTest, TheHostCannotPassItsOwnMemory) {
  std::vector<double> x(3);
  volatile double* const data = x.data();
  volatile std::size_t three = 3;
  EXPECT_DEATH(data[three] = 1, "heap-buffer-overflow");
}

#endif

#ifdef REF5D_UBSAN
TEST(EmulatorHostDeathTest, SignedOverflowEndsTheProgram) {
  volatile int big = INT_MAX;
  EXPECT_DEATH(big = big + 1, "signed integer overflow");
}
#endif

TEST(EmulatorHostDeathTest, AStackThatIsTooSmallIsSaid) {
  EXPECT_EXIT(launch_deep(device().compute()), ::testing::ExitedWithCode(3),
              "stack overflow in deep, block \\(0,0,0\\), thread [0-9]+: its local variables take more than 65536 bytes");
}

}  // namespace
}  // namespace ref5d::testing
