// Each planted fault must be reported, under all of 20 seeds unless it says otherwise, and its correct twin be clean under all.
#include <gtest/gtest.h>

#include "common/device/device.h"
#include "common/device/emu/random.h"
#include "tests/unit/emulator_faults.h"

namespace ref5d::testing {
namespace {

constexpr int kSeeds = 20;

class EmulatorFaults : public ::testing::TestWithParam<PlantedFault> {
 protected:
  void SetUp() override { before_ = emu::seed(); }
  void TearDown() override { emu::set_seed(before_); }

 private:
  std::uint64_t before_ = 0;
};

// What a seed brings to light.
struct Report {
  emu::Fault fault = emu::Fault::kNone;
  std::string text;
};

Report run_under(const PlantedFault& fault, bool faulty, int seed) {
  emu::set_seed(static_cast<std::uint64_t>(seed));
  Report report;
  try {
    fault.run(faulty);
    device().synchronize();
  } catch (const emu::EmulatorError& e) {
    report = {e.fault, e.what()};
  }
  // What was queued behind the fault may run into it, too.
  for (int more = 0; report.fault != emu::Fault::kNone && more < 10; ++more) {
    try {
      device().synchronize();
      break;
    } catch (const emu::EmulatorError&) {
    }
  }
  return report;
}

TEST_P(EmulatorFaults, IsReported) {
  const PlantedFault& fault = GetParam();
  int reported = 0;
  for (int seed = 0; seed < kSeeds; ++seed) {
    const Report r = run_under(fault, true, seed);
    if (r.fault == emu::Fault::kNone) continue;
    EXPECT_TRUE(r.fault == fault.expected || r.fault == fault.otherwise) << r.text;
    const bool says_seed = r.text.find(" (REF5D_EMU_SEED=" + std::to_string(seed) + ")") != std::string::npos;
    EXPECT_TRUE(says_seed || r.text.find(" asks for ") != std::string::npos) << r.text;
    EXPECT_EQ(r.text.find('\n'), std::string::npos) << r.text;
    if (r.fault != fault.expected) continue;
    EXPECT_NE(r.text.find(fault.message), std::string::npos) << r.text << "\nsays nothing of " << fault.message;
    if (++reported == 1) RecordProperty("report", r.text);
    EXPECT_EQ(run_under(fault, true, seed).text, r.text) << "the same seed gives another run";
  }
  EXPECT_GE(reported, fault.seeds) << "of " << kSeeds << " seeds";
  RecordProperty("seeds", reported);
}

TEST_P(EmulatorFaults, TwinIsClean) {
  for (int seed = 0; seed < kSeeds; ++seed) EXPECT_EQ(run_under(GetParam(), false, seed).text, "") << "seed " << seed;
}

std::string name_of(const ::testing::TestParamInfo<PlantedFault>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(Threads, EmulatorFaults, ::testing::ValuesIn(faults_between_threads()), name_of);
INSTANTIATE_TEST_SUITE_P(Memory, EmulatorFaults, ::testing::ValuesIn(faults_of_memory()), name_of);
INSTANTIATE_TEST_SUITE_P(Streams, EmulatorFaults, ::testing::ValuesIn(faults_between_streams()), name_of);

}  // namespace
}  // namespace ref5d::testing
