// Runs of several ranks that cannot go on: one line, and everyone ends.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "tests/support/io_testing.h"
#include "tests/support/program_testing.h"

namespace ref5d::testing {
namespace {

TEST(RanksFailing, BadUsageIsOneLine) {
  expect_refusals("02_ddp_zero",
                  {{3, "--strategy zero", {"--strategy zero", "zero1"}},
                   {3, "--dp 2", {"--dp 2 does not fit 3 ranks"}},
                   {4, "--strategy hsdp --shard-size 3", {"--shard-size 3", "4 data-parallel ranks"}},
                   {2, "--strategy zero2 --bucket-mb 1", {"--bucket-mb means nothing", "zero2"}},
                   {2, "--strategy ddp --unit model", {"--unit means nothing", "ddp"}},
                   {2, "--data /nonexistent", {"/nonexistent"}},
                   {2, "--json /nonexistent/r.json", {"/nonexistent"}},
                   {2, "--vocab 10", {"vocabulary"}},
                   {2, "--sabotage own-seed --no-verify", {"--no-verify"}},
                   {2, "--sabotage norm-of-own-shard --strategy ddp", {"--strategy zero2"}},
                   {2, "--tp 2", {"--tp"}},
                   {2, "--timeout 0", {"--timeout"}},
                   {2, "--timeout 1e10", {"--timeout"}},
                   {2, "--link-mbit 5", {"--link-mbit", "--experiment buckets, overlap"}},
                   {2, "--experiment compare --link-latency 5", {"--link-latency", "--experiment compare"}},
                   {2, "--experiment buckets --virtual-trace /tmp/v", {"--virtual-trace", "--experiment buckets"}},
                   {2, "--experiment calculator --shard-size 2", {"--shard-size", "hsdp"}},
                   {2, "--no-prefetch", {"--no-prefetch means nothing", "ddp"}},
                   {2, "--reduce-dtype bf16", {"--reduce-dtype", "--dtype fp32"}},
                   {2, "--json /proc/nope", {"--json /proc/nope", "cannot be written"}},
                   {2, "--save /proc/nope", {"--save /proc/nope", "cannot be written"}},
                   {2, "--sabotage epsilon-inside-root --lr 0", {"does nothing", "--lr"}},
                   {2, "--sabotage own-seed --init-std 0", {"does nothing", "--init-std"}},
                   {2, "--sabotage skip-full-bucket --hidden 4 --heads 1 --kv-heads 1 --ffn 4 --vocab 256", {"does nothing"}},
                   {2, "--sabotage decay-flat-buffer --weight-decay 0.0002", {"does nothing", "--weight-decay"}},
                   {2, "--sabotage stale-weights --strategy hsdp", {"does nothing", "4 ranks"}},
                   {2, "--save /tmp --json /tmp/latest", {"--json", "--save"}},
                   {2, "--experiment overlap --virtual-trace /nonexistent/v", {"--virtual-trace /nonexistent/v.naive.json"}},
                   {2, "--sabotage no-stream-wait --no-overlap", {"does nothing", "--no-overlap"}},
                   {2, "--sabotage drift --strategy hsdp --shard-size 2", {"does nothing", "replicas"}},
                   {2, "--sabotage last-micro-batch-only --strategy zero2 --keep-full-gradients", {"does nothing"}}});
  expect_one_error(run_tiny_on(1, "02_ddp_zero", "--sabotage own-seed"), 2, {"mpiexec -n 2"});
  // Files that are read when the run has said what it trains.
  expect_one_error(run_tiny_on(2, "02_ddp_zero", "--load " REF5D_SOURCE_DIR "/LICENSE"), 2, {"LICENSE"});
  expect_one_error(run_tiny_on(2, "02_ddp_zero", "--resume /nonexistent"), 2, {"/nonexistent"});
}

// The processes of a run, by a text of its command line.
std::vector<pid_t> ranks_of(const std::string& text) {
  std::vector<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ifstream file(entry.path() / "cmdline");
    std::string line((std::istreambuf_iterator<char>(file)), {});
    const bool is_rank = line.substr(0, line.find('\0')).ends_with("02_ddp_zero");
    if (is_rank && line.find(text) != std::string::npos) found.push_back(std::stoi(entry.path().filename()));
  }
  std::sort(found.begin(), found.end());
  return found;
}

struct Interrupted {
  Outcome outcome;
  double seconds_after = 0;  // the signal
  std::size_t left = 0;      // processes
};

// Sends a signal to one rank of a long run while it trains.
Interrupted interrupt(const std::string& strategy, int signal, std::size_t rank, const std::string& flags) {
  const TempDir dir;
  Interrupted result;
  std::chrono::steady_clock::time_point sent;
  std::thread sender([&] {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (ranks_of(dir.path("r.json")).size() < 4 && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    std::this_thread::sleep_for(std::chrono::milliseconds(700));
    const std::vector<pid_t> ranks = ranks_of(dir.path("r.json"));
    if (rank < ranks.size()) kill(ranks[rank], signal);
    sent = std::chrono::steady_clock::now();
  });
  result.outcome = run_tiny_on(
      4, "02_ddp_zero", "--steps 10000000 --strategy " + strategy + " --quiet " + flags + " --json " + dir.path("r.json"));
  sender.join();
  result.seconds_after = std::chrono::duration<double>(std::chrono::steady_clock::now() - sent).count();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  const std::vector<pid_t> left = ranks_of(dir.path("r.json"));
  result.left = left.size();
  for (pid_t p : left) kill(p, SIGKILL);
  EXPECT_FALSE(std::filesystem::exists(dir.path("r.json")));
  return result;
}

TEST(RanksFailing, AKilledRankEndsTheOthers) {
  for (std::size_t rank : {0, 2}) {
    const Interrupted run = interrupt("zero3", SIGKILL, rank, "--no-verify");
    EXPECT_NE(run.outcome.exit_status, 0);
    EXPECT_LT(run.seconds_after, 10);
    EXPECT_EQ(run.left, 0u);
  }
}

// One that hangs is noticed by the others, who say where they wait.
TEST(RanksFailing, AHangingRankIsATimeOut) {
  for (std::size_t rank : {0, 1}) {
    const Interrupted run = interrupt("ddp", SIGSTOP, rank, "--timeout 1 --no-verify");
    EXPECT_EQ(run.outcome.exit_status, 3) << run.outcome.description();
    EXPECT_LT(run.seconds_after, 10);
    EXPECT_EQ(run.left, 0u);
    const std::string& err = run.outcome.err;
    EXPECT_NE(err.find("over dp"), std::string::npos) << err;
    EXPECT_NE(err.find("was not complete after 1 s"), std::string::npos) << err;
    EXPECT_EQ(err.find("02_ddp_zero: "), err.rfind("02_ddp_zero: ")) << err;
  }
}

// Also while the others wait for rank 0's baseline.
TEST(RanksFailing, AHangingBaselineIsATimeOut) {
  const Interrupted run = interrupt("ddp", SIGSTOP, 0, "--timeout 1 --verify-steps 10000000");
  EXPECT_EQ(run.outcome.exit_status, 3) << run.outcome.description();
  EXPECT_NE(run.outcome.err.find("a sign of life from rank 0"), std::string::npos) << run.outcome.err;
  EXPECT_LT(run.seconds_after, 10);
}

// What ranks on one machine hold of a model together, and what the baseline holds of it alone.
TEST(RanksFailing, ModelsBeyondTheMachineAreRefused) {
  const std::string flags = "--model llama-8b --strategy zero3 --seq 64 --micro-batch 1 --steps 1 ";
  RunOptions options;
  options.ranks = 2;
  expect_one_error(run_binary("02_ddp_zero", words(flags), options), 2, {"single-device baseline", "--no-verify"});
  expect_one_error(run_binary("02_ddp_zero", words(flags + "--no-verify"), options), 2, {"2 ranks", "a machine that has"});
}

TEST(RanksFailing, DifferentFlagsAreNamed) {
  const std::vector<std::string> flags =
      words("--steps 2 --no-verify : -n 1 " REF5D_BUILD_DIR "/02_ddp_zero --steps 3 --no-verify");
  RunOptions options;
  options.ranks = 2;
  expect_one_error(run_binary("02_ddp_zero", flags, options), 2, {"ranks 0 and 2", "\"3\"", "different flags"});
}

// All fail at once: one of them still says why.
TEST(RanksFailing, FailuresTogetherAreReported) {
  int failures = 0;
  for (int i = 0; i < 5; ++i) {
    const Outcome run = run_tiny_on(4, "02_ddp_zero", "--steps 2000 --quiet --no-verify --timeout 0.001 --strategy zero3");
    if (run.exit_status == 0) continue;
    ++failures;
    EXPECT_EQ(run.exit_status, 3);
    EXPECT_NE(run.err.find("02_ddp_zero: "), std::string::npos) << run.err;
  }
  EXPECT_GT(failures, 0);
}

// Outputs must not replace inputs, nor each other; said before anything is trained.
TEST(RanksFailing, OutputsOfExperimentsAreChecked) {
  const TempDir dir;
  const std::string traces = "--no-verify --experiment overlap --virtual-trace " + dir.path("v") + " ";
  expect_one_error(run_tiny_on(2, "02_ddp_zero", traces + "--json " + dir.path("v.ddp.json")), 2, {"v.ddp.json", "both write"});
  std::filesystem::copy_file(REF5D_SOURCE_DIR "/LICENSE", dir.path("v.zero1.json"));
  expect_one_error(run_tiny_on(2, "02_ddp_zero", traces + "--data " + dir.path("v.zero1.json")), 2,
                   {"--virtual-trace", "would replace what --data reads"});
  std::filesystem::create_directory(dir.path("v.naive.json"));
  expect_one_error(run_tiny_on(2, "02_ddp_zero", traces), 2, {"v.naive.json is a folder"});
  std::filesystem::create_symlink(dir.path("loop"), dir.path("loop"));
  expect_one_error(run_tiny_on(2, "02_ddp_zero", "--no-verify --json " + dir.path("loop")), 2, {"--json", "loop"});
}

// A failure that rank 0 meets alone, while the others wait for it.
TEST(RanksFailing, AFullDiskEndsAll) {
  const TempDir dir;
  RunOptions options;
  options.file_size_limit = 20'000'000;  // less than the moments take, more than MPI's own shared memory
  const Outcome run = run_tiny_on(
      2, "02_ddp_zero", "--hidden 256 --ffn 2048 --layers 4 --steps 1 --no-verify --quiet --save " + dir.path("save"), options);
  EXPECT_EQ(run.exit_status, 3) << run.description();
  EXPECT_LT(run.seconds, 10);
  EXPECT_EQ(run.err.find("02_ddp_zero: "), run.err.rfind("02_ddp_zero: ")) << run.err;
}

}  // namespace
}  // namespace ref5d::testing
