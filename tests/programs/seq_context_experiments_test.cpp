// Lesson 04's side experiments, by their reports and files.
#include <gtest/gtest.h>

#include <algorithm>

#include "common/comm/transport.h"
#include "common/device/device.h"
#include "common/io/file.h"
#include "tests/support/io_testing.h"
#include "tests/support/program_testing.h"

namespace ref5d::testing {
namespace {

constexpr const char* kSeqContext = "04_seq_context_parallel";

double measured_of(const Report& report, const std::string& name) {
  for (const Claim& c : report.claims)
    if (c.name == name) return c.measured;
  ADD_FAILURE() << "no claim is called " << name;
  return 0;
}

// The causal trap, counted both ways, and the published bound.
TEST(SeqContextExperiments, Balance) {
  const Report report = passing_report(4, kSeqContext, "--seq 32 --experiment balance");
  const std::string of = ", 4 ranks, 256 tokens";
  EXPECT_EQ(measured_of(report, "contiguous: hops with work, last rank to first" + of), 4);
  EXPECT_NEAR(measured_of(report, "contiguous: pairs, last rank to first" + of), (2 * 3 * 64 + 65) / 65.0, 1e-9);
  EXPECT_EQ(measured_of(report, "zigzag: pairs by which ranks differ at a hop" + of), 0);
  EXPECT_EQ(measured_of(report, "striped: pairs by which ranks differ at a hop" + of), 64);
  for (const char* layout : {"contiguous", "zigzag", "striped"})
    EXPECT_EQ(measured_of(report, std::string(layout) + ": pairs of all ranks and hops" + of), 256 * 257 / 2);
  EXPECT_NEAR(measured_of(report, "contiguous: rate, of a balanced ring's, 4 ranks of 4096 tokens"), 2 / 3.5, 1e-3);
  EXPECT_NEAR(measured_of(report, "contiguous: rate, of a balanced ring's, 8 ranks of 4096 tokens"), 0.533, 1e-3);
}

TEST(SeqContextExperiments, SquaresAndTimelines) {
  if (Device::mode() == "cuda") GTEST_SKIP() << "replays times that MODE=cpu records";
  const TempDir dir;
  const Outcome run = run_tiny_on(4, kSeqContext, "--seq 64 --no-verify --experiment balance --virtual-trace " + dir.path("v"));
  ASSERT_EQ(run.exit_status, 0) << run.description();
  // The last query's row of the drawing: zig-zag over four ranks, 16 tokens.
  EXPECT_NE(run.out.find(" 0  0033221111223300 "), std::string::npos) << run.out;
  for (const char* layout : {"contiguous", "zigzag", "striped"}) {
    const std::string squares = read_file(dir.path("v." + std::string(layout) + ".squares.csv"));
    EXPECT_EQ(std::count(squares.begin(), squares.end(), '\n'), 1 + 16 * 17 / 2) << layout;
    for (int rank = 0; rank < 4; ++rank) {
      const auto streams = events_by_stream(dir.path("v." + std::string(layout) + ".json"), rank);
      const std::size_t hops = layout == std::string("contiguous") ? static_cast<std::size_t>(rank) + 1 : 4;
      EXPECT_EQ(streams.at("compute").size(), hops) << layout << " " << rank;
      EXPECT_EQ(streams.at("link").size(), 3u) << layout << " " << rank;
    }
  }
}

// A hop of which nothing is visible is not computed, forward or backward: with the contiguous layout a rank has as many that
// are as ranks come before it, and its own.
TEST(SeqContextExperiments, HopsThatSeeNothingComputeNothing) {
  const TempDir dir;
  const Outcome run =
      run_tiny_on(4, kSeqContext,
                  "--layers 2 --cp-layout contiguous --grad-accum 1 --steps 1 --no-verify --quiet --trace " + dir.path("t"));
  ASSERT_EQ(run.exit_status, 0) << run.description();
  for (int rank = 0; rank < 4; ++rank) {
    const auto kernels = events_by_stream(dir.path("t"), rank).at("compute");
    const auto count = [&](const char* name) {
      return std::count_if(kernels.begin(), kernels.end(), [&](const TraceEvent& k) { return k.name.starts_with(name); });
    };
    EXPECT_EQ(count("attention_forward"), 2 * (rank + 1)) << rank;
    EXPECT_EQ(count("attention_backward_kv"), 2 * (rank + 1)) << rank;
    EXPECT_EQ(count("attention_merge<"), 2 * rank) << rank;
  }
}

// Times of kernels vary, but a rank that sees a seventh of the pairs of another's does not take half as long: what the mask
// empties is left out.
TEST(SeqContextExperiments, WorkFollowsThePairs) {
  if (Device::mode() == "cuda") GTEST_SKIP() << "replays times that MODE=cpu records";
  const TempDir dir;
  RunOptions options;
  options.ranks = 4;
  const Outcome run =
      run_binary(kSeqContext,
                 words("--layers 1 --steps 1 --seq 2048 --micro-batch 1 --no-verify --quiet --experiment balance "
                       "--virtual-trace " +
                       dir.path("v")),
                 options);
  ASSERT_EQ(run.exit_status, 0) << run.description();
  const auto time_of = [&](const std::string& layout, int rank) {
    double us = 0;
    const auto events = events_by_stream(dir.path("v." + layout + ".json"), rank);
    for (const TraceEvent& e : events.at("compute")) us += e.end - e.begin;
    return us;
  };
  EXPECT_LT(time_of("contiguous", 0), 0.5 * time_of("contiguous", 3));
  EXPECT_LT(time_of("zigzag", 3), 0.8 * time_of("contiguous", 3));
}

TEST(SeqContextExperiments, Overlap) {
  if (Device::mode() == "cuda") GTEST_SKIP() << "replays times that MODE=cpu records";
  const TempDir dir;
  RunOptions options;
  options.ranks = 2;
  const Outcome run =
      run_binary(kSeqContext,
                 words("--seq 512 --layers 2 --experiment overlap --steps 1 --quiet --no-verify --virtual-trace " +
                       dir.path("v") + " --json " + dir.path("r")),
                 options);
  ASSERT_EQ(run.exit_status, 0) << run.description();
  const Report report = read_report(dir.path("r"));
  for (const char* name :
       {"exposed in virtual time: less than half beside the hop before", "exposed in virtual time: less with grouped queries",
        "overlap, 8 kv heads: final weights that are the same bits",
        "overlap, 4 kv heads: final weights that are the same bits"})
    EXPECT_TRUE(has_claim(report, name)) << name;
  EXPECT_EQ(measured_of(report, "sent over cp, grouped queries to as many kv heads as heads"), 0.5);
  for (const char* name : {"v.mha.overlap.json", "v.mha.no-overlap.json", "v.gqa.overlap.json", "v.gqa.no-overlap.json"})
    EXPECT_TRUE(events_by_stream(dir.path(name)).contains("cp")) << name;
}

TEST(SeqContextExperiments, Compare) {
  const Report report = passing_report(4, kSeqContext, "--kv-heads 4 --heads 8 --experiment compare");
  for (const char* way : {"dp", "tp", "tp, sp", "tp, sp, gathered", "cp", "ring", "all-gather", "ulysses", "ulysses 2 x ring"})
    EXPECT_TRUE(has_claim(report, "compare, " + std::string(way) + ": a layer keeps")) << way;
  EXPECT_EQ(measured_of(report, "compare, cp: a layer keeps, of what it keeps uncut"), 0.25);
  if (!transport_counts_wire()) return;
  EXPECT_EQ(measured_of(report, "compare, sp, gathered inputs kept: bytes of tensor parallelism's"), 1);
  EXPECT_EQ(measured_of(report, "compare, sp, inputs gathered again: 10 units for 8"), 1.25);
}

// What is left beside weights holds N times as many tokens.
TEST(SeqContextExperiments, TheLongestSequenceGrowsWithTheRanks) {
  const TempDir dir;
  RunOptions options;
  options.ranks = 4;
  const Outcome run =
      run_binary(kSeqContext, words("--steps 1 --no-verify --quiet --experiment length --json " + dir.path("r")), options);
  ASSERT_EQ(run.exit_status, 0) << run.description();
  const Report report = read_report(dir.path("r"));
  EXPECT_NEAR(measured_of(report, "longest sequence under the cap: 2 ranks, times one's"), 2, 0.05);
  EXPECT_NEAR(measured_of(report, "longest sequence under the cap: 4 ranks, times one's"), 4, 0.1);
  (void)passing_report(4, kSeqContext, "--experiment length --recompute full --dtype bf16");
}

TEST(SeqContextExperiments, AllOfThemOnAnyNumberOfRanks) {
  for (const int ranks : {1, 3}) {
    RunOptions options;
    options.ranks = ranks;
    const Outcome run = run_binary(kSeqContext, words("--layers 2 --seq 30 --steps 1 --no-verify --experiment all"), options);
    EXPECT_EQ(run.exit_status, 0) << run.description();
  }
}

}  // namespace
}  // namespace ref5d::testing
