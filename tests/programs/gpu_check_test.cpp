// The script behind make gpu-check, on a machine without a GPU: its steps on the CPU's build, with stand-ins for NVIDIA's
// tools.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "common/device/device.h"
#include "common/device/error.h"
#include "common/io/file.h"
#include "common/io/json.h"
#include "tests/support/io_testing.h"
#include "tests/support/program_testing.h"

namespace ref5d::testing {
namespace {

// A folder of programs that stand before the others of their name on PATH.
class StandIns {
 public:
  void put(const std::string& name, const std::string& script) const {
    std::filesystem::permissions(dir_.put(name, "#!/bin/sh\n" + script), std::filesystem::perms::owner_all);
  }
  [[nodiscard]] std::string report() const { return read_file(dir_.path("out/gpu-check.json")); }
  [[nodiscard]] Outcome run(std::vector<std::string> environment) const {
    environment.push_back("PATH=" + dir_.path() + ":" + std::getenv("PATH"));
    environment.push_back("GPU_CHECK_OUT=" + dir_.path("out"));
    RunOptions options;
    options.environment = std::move(environment);
    options.deadline = 180;
    return run_binary("../../common/tools/gpu_check", {}, options);
  }

 private:
  TempDir dir_;
};

struct CheckStep {
  std::string result, remark;
};
std::map<std::string, CheckStep> steps_of(const std::string& report) {
  std::map<std::string, CheckStep> steps;
  const Json json = Json::parse(report);
  for (const Json& s : json.at("steps").items())
    steps[s.at("step").as_string()] = {s.at("result").as_string(), s.at("remark").as_string()};
  return steps;
}

// A compute-sanitizer that runs the program, but for one tool that finds something and one that does not end. initcheck must
// see no cases of the library's product, and no arrays that were filled for it.
constexpr const char* kSanitizer = R"(tool=$2; shift 4
case $tool in
  memcheck) echo '========= ERROR SUMMARY: 3 "errors"'; exit 86 ;;
  racecheck) exec sleep 100 ;;
  initcheck) case "$*" in *--no-blas*--no-nan*) ;; *) exit 7 ;; esac ;;
esac
"$@" && echo '========= ERROR SUMMARY: 0 errors'
)";

TEST(GpuCheck, EveryStepHasItsRow) {
  if (Device::mode() != "cpu") GTEST_SKIP() << "tries the script on the CPU's build";
  const StandIns tools;
  tools.put("make", "echo made");
  tools.put("g++", "exit 0");  // with which the packages are looked for
  tools.put("compute-sanitizer", kSanitizer);
  const Outcome run = tools.run({"GPU_CHECK_MODE=cpu", "SANITIZER_LIMIT=2"});
  EXPECT_EQ(run.exit_status, kExitCheckFailed) << run.description();
  const std::string report = tools.report();
  EXPECT_FALSE(Json::parse(report).at("pass").as_bool());
  std::map<std::string, CheckStep> steps = steps_of(report);
  EXPECT_EQ(steps.at("compute-sanitizer memcheck").result, "FAIL");
  expect_contains(steps.at("compute-sanitizer memcheck").remark, "3 \"errors\"");
  EXPECT_EQ(steps.at("compute-sanitizer racecheck").result, "not run to the end");
  steps.erase("compute-sanitizer memcheck");
  steps.erase("compute-sanitizer racecheck");
  for (const char* name : {"build",
                           "kernels against the CPU's values",
                           "a case for every kernel",
                           "compute-sanitizer initcheck",
                           "01_grad_accum bf16",
                           "02_ddp_zero zero3 on 4 ranks",
                           "03_tensor_parallel on 4 ranks",
                           "03_tensor_parallel tp 2",
                           "03_tensor_parallel tp 2 x dp 2, zero3",
                           "04_seq_context_parallel on 4 ranks",
                           "04_seq_context_parallel ulysses 2 x ring 2",
                           "04_seq_context_parallel cp 2 x tp 2 with sp, zero3",
                           "05_pipeline on 4 ranks",
                           "05_pipeline zb-v on 2 ranks",
                           "05_pipeline dualpipe pp 2 x tp 2 with sp, zero1",
                           "06_expert_parallel on 4 ranks",
                           "06_expert_parallel hierarchical, two nodes",
                           "06_expert_parallel ep 2 x tp 2, zero3",
                           "their values are the same, bit by bit",
                           "time by kernel, fp32",
                           "time of a step, fp32"})
    EXPECT_TRUE(steps.contains(name)) << name;
  for (const auto& [name, step] : steps) {
    EXPECT_EQ(step.result, "ok") << name << ": " << step.remark;
    expect_contains(run.out, name);
  }
  expect_contains(run.out, std::to_string(steps.size()) + " ok, 1 failed, 1 not run to the end, 0 not run");
}

TEST(GpuCheck, ABuildThatFailsEndsIt) {
  if (Device::mode() != "cpu") GTEST_SKIP() << "tries the script on the CPU's build";
  const StandIns tools;
  tools.put("make", "echo something is wrong; exit 2");
  tools.put("g++", "exit 0");
  const Outcome run = tools.run({"GPU_CHECK_MODE=cpu"});
  EXPECT_EQ(run.exit_status, kExitCheckFailed) << run.description();
  const std::map<std::string, CheckStep> steps = steps_of(tools.report());
  ASSERT_EQ(steps.size(), 1U);
  EXPECT_EQ(steps.at("build").result, "FAIL");
  expect_contains(steps.at("build").remark, "something is wrong");
}

TEST(GpuCheck, BuildsForTheGpusThatArePresent) {
  const StandIns tools;
  tools.put("nvidia-smi", "case $* in *compute_cap*) printf '9.0\\n8.0\\n9.0\\n' ;; *) echo Some GPU ;; esac");
  tools.put("nvcc", "exit 0");
  tools.put("g++", "exit 0");
  tools.put("make", "echo \"$@\"; exit 2");
  const Outcome found = tools.run({"GPU_CHECK_MODE=cuda"});
  EXPECT_EQ(found.exit_status, kExitCheckFailed) << found.description();
  expect_contains(steps_of(tools.report()).at("build").remark, "MODE=cuda CUDA_ARCHS=80 90 all");
  EXPECT_EQ(Json::parse(tools.report()).at("device").as_string(), "Some GPU");
  (void)tools.run({"GPU_CHECK_MODE=cuda", "CUDA_ARCHS=100"});
  expect_contains(steps_of(tools.report()).at("build").remark, "MODE=cuda CUDA_ARCHS=100 all");
}

TEST(GpuCheck, WithoutAGpuItSaysSo) {
  const StandIns tools;
  tools.put("nvidia-smi", "echo NVIDIA-SMI has failed; exit 9");
  const Outcome run = tools.run({"GPU_CHECK_MODE=cuda"});
  EXPECT_EQ(run.exit_status, kExitBadInput) << run.description();
  EXPECT_TRUE(run.err.starts_with("gpu-check: no GPU found")) << run.err;
  EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << run.err;
  EXPECT_EQ(run.out, "");
}

TEST(GpuCheck, WhatTheTimeDoesNotAllowIsNotRun) {
  if (Device::mode() != "cpu") GTEST_SKIP() << "tries the script on the CPU's build";
  const StandIns tools;
  tools.put("make", "echo made");
  tools.put("g++", "exit 0");
  const Outcome run = tools.run({"GPU_CHECK_MODE=cpu", "GPU_CHECK_LIMIT=0"});
  EXPECT_EQ(run.exit_status, kExitCheckFailed) << run.description();
  EXPECT_EQ(steps_of(tools.report()).at("build").result, "not run");
}

TEST(GpuCheck, AnotherModeIsRefused) {
  const Outcome run = StandIns().run({"GPU_CHECK_MODE=emu"});
  EXPECT_EQ(run.exit_status, kExitBadInput) << run.description();
  EXPECT_EQ(run.err, "gpu-check: GPU_CHECK_MODE is emu; it can be cpu, or unset\n");
}

}  // namespace
}  // namespace ref5d::testing
