// Every kernel of the suite in a GPU's geometry: no fault under any seed, and the CPU's values.
#include <gtest/gtest.h>

#include <set>

#include "common/device/device.h"
#include "common/device/emu/launches.h"
#include "common/device/emu/random.h"
#include "common/tools/kernel_cases.h"
#include "common/tools/kernel_compare.h"
#include "common/tools/kernel_coverage.h"

namespace ref5d {
namespace {

constexpr std::uint64_t kSeeds = 11;  // 0, which is in order, and ten more

// Written by the CPU's build just before (Makefile).
const SafetensorsFile& cpu_values() {
  static const SafetensorsFile kFile = open_values(REF5D_BUILD_DIR "/tests/cpu_values.safetensors");
  return kFile;
}

class EmulatorKernels : public ::testing::TestWithParam<std::uint64_t> {
 protected:
  void SetUp() override {
    before_ = emu::seed();
    emu::set_seed(GetParam());
  }
  void TearDown() override { emu::set_seed(before_); }

 private:
  std::uint64_t before_ = 0;
};

TEST_P(EmulatorKernels, AgreeWithTheCpu) {
  int compared = 0;
  for (const KernelCase& one : kernel_cases(CaseSize::kSmall)) {
    for (const ValueComparison& c : compare_case(one, cpu_values(), CaseFill::kNothing)) {
      EXPECT_TRUE(c.pass) << c.name << ": " << c.error << " is more than " << c.limit << " " << c.note;
      ++compared;
    }
  }
  EXPECT_GT(compared, 500);
}
INSTANTIATE_TEST_SUITE_P(Seed, EmulatorKernels, ::testing::Range(std::uint64_t{0}, kSeeds),
                         ::testing::PrintToStringParamName());

// Kernels of one block, whatever the size.
const std::set<std::string> kOneBlock = {"add_loss", "balance_loss", "clip_scale", "router_z_sum", "sort_scan"};
// Kernels whose block is one warp, whatever the size: a row of theirs has no more than some hundred experts.
const std::set<std::string> kOneWarp = {"choose_experts", "router_backward", "router_softmax", "router_z"};

TEST(EmulatorLaunches, EveryKernelIsTriedWithSeveralBlocksAndWarps) {
  for (const KernelCase& one : kernel_cases(CaseSize::kSmall)) (void)run_case(one, CaseFill::kNothing);
  std::map<std::string, emu::LargestLaunch> by_name;
  for (const auto& [name, l] : emu::largest_launches()) {
    emu::LargestLaunch& all = by_name[name.substr(0, name.find('<'))];
    all = {std::max(all.blocks, l.blocks), std::max(all.threads, l.threads)};
  }
  for (const std::string& kernel : kernels_in_source(REF5D_SOURCE_DIR)) {
    ASSERT_TRUE(by_name.contains(kernel)) << kernel;
    EXPECT_EQ(by_name[kernel].threads > 32, !kOneWarp.contains(kernel)) << kernel;
    EXPECT_EQ(by_name[kernel].blocks > 1, !kOneBlock.contains(kernel)) << kernel;
  }
}

}  // namespace
}  // namespace ref5d
