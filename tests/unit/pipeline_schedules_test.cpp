// The published schedules: their orders as listed in the sources, and that each is whole for every size.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "05_pipeline/schedules.h"
#include "tests/support/pipeline_schedules_testing.h"

namespace ref5d::testing {
namespace pipeline_schedules_test {

using namespace pipeline;

// Of a rank with one stage: "F0 F1 B0 B1".
std::string passes_text(const Schedule& schedule, int rank) {
  std::string text;
  for (const Cell& cell : schedule.ranks[static_cast<std::size_t>(rank)]) {
    text += (text.empty() ? "" : " ") + to_text(cell).substr(std::to_string(rank).size());
  }
  return text;
}

// Of a rank's forwards: chunks and micro-batches, in order.
std::pair<std::string, std::string> forward_order(const Schedule& schedule, int rank) {
  std::string chunks, micro_batches;
  for (const Cell& cell : schedule.ranks[static_cast<std::size_t>(rank)]) {
    if (cell.operation.pass != Pass::kForward) continue;
    chunks += std::to_string(cell.operation.stage / schedule.rank_count()) + " ";
    micro_batches += std::to_string(cell.operation.micro_batch) + " ";
  }
  return {chunks, micro_batches};
}

// Forwards before the first backward of any kind.
int warm_up(const Schedule& schedule, int rank) {
  int count = 0;
  for (const Cell& cell : schedule.ranks[static_cast<std::size_t>(rank)]) {
    if (cell.operation.pass != Pass::kForward || cell.beside) break;
    ++count;
  }
  return count;
}

TEST(Schedules, P36_T10_EveryOperationOnceForEverySize) {
  for (const Schedule& s : all_schedules(8)) {
    SCOPED_TRACE(size_text(s));
    std::map<Operation, int> times;
    for (const auto& row : s.ranks) {
      for (const Cell& cell : row) for_each_operation(cell, [&](const Operation& o) { ++times[o]; });
    }
    int whole = 0, halved = 0;
    for (int stage = 0; stage < s.stages; ++stage) {
      for (int m = 0; m < s.micro_batches; ++m) {
        const auto count = [&](Pass pass) { return times.contains({stage, pass, m}) ? times.at({stage, pass, m}) : 0; };
        ASSERT_EQ(count(Pass::kForward), 1);
        ASSERT_EQ(count(Pass::kBackward) + count(Pass::kInput), 1);
        ASSERT_EQ(count(Pass::kInput), count(Pass::kWeight));
        ++(count(Pass::kBackward) == 1 ? whole : halved);
      }
    }
    ASSERT_EQ(times.size(), static_cast<std::size_t>(2 * whole + 3 * halved));
    const bool has_whole = !s.name.starts_with("zb"), has_halved = s.name.starts_with("zb") || s.name.starts_with("dual");
    ASSERT_EQ(whole > 0, has_whole);
    ASSERT_EQ(halved > 0, has_halved);
  }
}

TEST(Schedules, GPipeOrder) {
  const Schedule s = schedule_of("gpipe", 3, 3);
  for (int r = 0; r < 3; ++r) EXPECT_EQ(passes_text(s, r), "F0 F1 F2 B0 B1 B2");
}

// Narayanan et al. 2021, figure 4.
TEST(Schedules, OneForwardOneBackwardOrder) {
  const Schedule s = schedule_of("1f1b", 4, 8);
  EXPECT_EQ(passes_text(s, 0), "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7");
  EXPECT_EQ(passes_text(s, 2), "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7");
  EXPECT_EQ(passes_text(s, 3), "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7");
}

TEST(Schedules, P36_OneForwardOneBackwardWithFewMicroBatches) {
  const Schedule two = schedule_of("1f1b", 4, 2);
  EXPECT_EQ(passes_text(two, 0), "F0 F1 B0 B1");
  EXPECT_EQ(passes_text(two, 2), "F0 F1 B0 B1");
  EXPECT_EQ(passes_text(two, 3), "F0 B0 F1 B1");
  for (int r = 0; r < 4; ++r) EXPECT_EQ(passes_text(schedule_of("1f1b", 4, 1), r), "F0 B0");
}

// The order of Megatron-LM's and PyTorch's tests: groups of 3 that 5 micro-batches do not fill.
TEST(Schedules, P37_InterleavedOrderWhereTheGroupDoesNotDivide) {
  const Schedule s = schedule_of("interleaved", 2, 5, 2, 3);
  for (int r = 0; r < 2; ++r) {
    const auto [chunks, micro_batches] = forward_order(s, r);
    EXPECT_EQ(chunks, "0 0 0 1 1 1 0 0 1 1 ");
    EXPECT_EQ(micro_batches, "0 1 2 0 1 2 3 4 3 4 ");
  }
  EXPECT_EQ(row_text(s, 0), "0F0 0F1 0F2 2F0 2F1 2F2 2B0 0F3 2B1 0F4 2B2 2F3 0B0 2F4 0B1 0B2 2B3 2B4 0B3 0B4");
}

// 2(p-r-1) + (v-1)p, and the first forward of the steady part.
TEST(Schedules, InterleavedWarmUp) {
  for (const int p : {2, 4, 8}) {
    for (const int v : {2, 3, 4}) {
      const Schedule s = schedule_of("interleaved", p, 4 * p, v);
      for (int r = 0; r < p; ++r) EXPECT_EQ(warm_up(s, r), 2 * (p - r - 1) + (v - 1) * p + 1) << p << " " << v << " " << r;
    }
  }
}

TEST(Schedules, InterleavedWithOneChunkIsOneForwardOneBackward) {
  for (int p = 1; p <= 5; ++p) {
    for (int m = 1; m <= 2 * p; ++m) {
      EXPECT_EQ(schedule_of("interleaved", p, m, 1).ranks, schedule_of("1f1b", p, m).ranks) << p << " " << m;
    }
  }
}

// 7 micro-batches on 3 ranks: 4 and 3, rather than 3, 3 and 1.
TEST(Schedules, P37_InterleavedGroupsAreEven) {
  EXPECT_EQ(forward_order(schedule_of("interleaved", 3, 7, 2), 0).second, "0 1 2 3 0 1 2 3 4 5 6 4 5 6 ");
  EXPECT_EQ(forward_order(schedule_of("interleaved", 3, 2, 2), 0).second, "0 1 0 1 ");
  EXPECT_EQ(forward_order(schedule_of("interleaved", 3, 7, 2, 3), 0).second, "0 1 2 0 1 2 3 4 5 3 4 5 6 6 ");
}

// Qi et al. 2023, figure 2.
TEST(Schedules, ZeroBubbleH1Order) {
  const Schedule s = schedule_of("zb-h1", 4, 8);
  EXPECT_EQ(passes_text(s, 0), "F0 F1 F2 F3 I0 W0 F4 I1 W1 F5 I2 W2 F6 I3 W3 F7 I4 W4 I5 W5 I6 W6 I7 W7");
  EXPECT_EQ(passes_text(s, 3), "F0 I0 F1 I1 F2 I2 F3 I3 W0 F4 I4 W1 F5 I5 W2 F6 I6 W3 F7 I7 W4 W5 W6 W7");
}

// Figure 3: warm-up 2(p-1-r), and W_j right after I_{j+2r}.
TEST(Schedules, ZeroBubbleH2Order) {
  const Schedule s = schedule_of("zb-h2", 3, 7);
  EXPECT_EQ(passes_text(s, 0), "F0 F1 F2 F3 F4 I0 W0 F5 I1 W1 F6 I2 W2 I3 W3 I4 W4 I5 W5 I6 W6");
  EXPECT_EQ(passes_text(s, 1), "F0 F1 F2 I0 F3 I1 F4 I2 W0 F5 I3 W1 F6 I4 W2 I5 W3 I6 W4 W5 W6");
  EXPECT_EQ(passes_text(s, 2), "F0 I0 F1 I1 F2 I2 F3 I3 F4 I4 W0 F5 I5 W1 F6 I6 W2 W3 W4 W5 W6");
}

TEST(Schedules, VShapedRanksHaveTheirStageAndItsMirror) {
  for (const char* name : {"zb-v", "dualpipev"}) {
    const Schedule s = schedule_of(name, 4, 9);
    EXPECT_EQ(s.stages, 8);
    const Assignment assignment(s);
    EXPECT_FALSE(assignment.copies());
    for (int r = 0; r < 4; ++r) EXPECT_EQ(assignment.stages_of(r), (std::vector<int>{r, 7 - r})) << name;
  }
}

TEST(Schedules, P46_DualPipeRanksHoldTwoCopies) {
  const Schedule s = schedule_of("dualpipe", 4, 8);
  EXPECT_EQ(s.stages, 4);
  const Assignment assignment(s);
  EXPECT_TRUE(assignment.copies());
  for (int stage = 0; stage < 4; ++stage) {
    EXPECT_EQ(assignment.holders_of(stage), (std::vector<int>{std::min(stage, 3 - stage), std::max(stage, 3 - stage)}));
    for (int m = 0; m < 8; ++m) EXPECT_EQ(assignment.rank_of(stage, m), m < 4 ? stage : 3 - stage);
  }
}

// The eight steps, spelled out by hand for an outer and a middle rank.
TEST(Schedules, DualPipeOrder) {
  const Schedule s = schedule_of("dualpipe", 4, 8);
  EXPECT_EQ(
      row_text(s, 0),
      "0F0 0F1 0F2 3F4 3I4 3W4 3F5 (0F3;3B5)OVERLAP_F_B (3F6;0B0)OVERLAP_F_B 3B6 (3F7;0B1)OVERLAP_F_B 3B7 0I2 0W2 0I3 0W3");
  EXPECT_EQ(row_text(s, 1),
            "1F0 2F4 1F1 2F5 1F2 2B4 (2F6;1B0)OVERLAP_F_B (1F3;2B5)OVERLAP_F_B (2F7;1B1)OVERLAP_F_B 2B6 1B2 2I7 1I3 2W7 1W3");
}

// A rank and its mirror do the same, on the same stages, each direction for the other.
TEST(Schedules, P46_MirroredDualPipeRanksHaveTheSameRow) {
  const int p = 6, m = 14;
  const Schedule s = schedule_of("dualpipe", p, m);
  const auto mirrored = [&](const Operation& o) { return Operation{o.stage, o.pass, (o.micro_batch + m / 2) % m}; };
  for (int r = 0; r < p; ++r) {
    std::vector<Cell> row = s.ranks[static_cast<std::size_t>(r)];
    for (Cell& cell : row) {
      cell.operation = mirrored(cell.operation);
      if (cell.beside) cell.beside = mirrored(*cell.beside);
    }
    EXPECT_EQ(row, s.ranks[static_cast<std::size_t>(p - 1 - r)]) << r;
  }
}

// The lengths of PyTorch's fixture dualpipev_4rank_10mb.csv.
TEST(Schedules, DualPipeVEntries) {
  const Schedule s = schedule_of("dualpipev", 4, 10);
  const std::size_t entries[] = {38, 36, 34, 33};
  for (std::size_t r = 0; r < 4; ++r) EXPECT_EQ(s.ranks[r].size(), entries[r]) << r;
}

// p ranks of DualPipeV do what the one half of 2p ranks of DualPipe does.
TEST(Schedules, DualPipeVIsHalfADualPipe) {
  const Schedule v = schedule_of("dualpipev", 3, 8), whole = schedule_of("dualpipe", 6, 16);
  for (std::size_t r = 0; r < 3; ++r) {
    std::vector<Cell> row = whole.ranks[r];
    const auto folded = [](Operation o) { return Operation{o.stage, o.pass, o.micro_batch % 8}; };
    for (Cell& cell : row) {
      cell.operation = folded(cell.operation);
      if (cell.beside) cell.beside = folded(*cell.beside);
    }
    EXPECT_EQ(row, v.ranks[r]) << r;
  }
}

TEST(Schedules, P46_DualPipeRefusesSizesItIsNotDefinedFor) {
  for (const auto& [p, m] : {std::pair{3, 8}, {4, 9}, {4, 6}, {4, 3}, {1, 2}, {2, 2}, {2, 1}}) {
    const std::string error = input_error_of([p = p, m = m] { (void)schedule_of("dualpipe", p, m); });
    EXPECT_NE(
        error.find("--schedule dualpipe needs an even number of stages along pp, and --micro-batches that are even and at "
                   "least 2 x " +
                   std::to_string(p) + "; " + std::to_string(p) + " stages and " + std::to_string(m) +
                   " micro-batches were given"),
        std::string::npos)
        << error;
  }
  for (const auto& [p, m] : {std::pair{2, 3}, {4, 7}, {1, 1}}) {
    const std::string error = input_error_of([p = p, m = m] { (void)schedule_of("dualpipev", p, m); });
    EXPECT_NE(error.find("--schedule dualpipev needs --micro-batches of at least 2 x " + std::to_string(p)), std::string::npos)
        << error;
  }
  EXPECT_EQ(input_error_of([] { (void)schedule_of("dualpipe", 4, 8); }), "");
  EXPECT_EQ(input_error_of([] { (void)schedule_of("dualpipev", 4, 9); }), "");
}

TEST(Schedules, BadOptionsAreRefused) {
  EXPECT_EQ(
      input_error_of([] { (void)schedule_of("2f2b", 2, 2); }),
      "--schedule 2f2b is not known; use one of gpipe, 1f1b, interleaved, zb-h1, zb-h2, zb-v, dualpipe, dualpipev, custom");
  EXPECT_EQ(input_error_of([] { (void)schedule_of("1f1b", 2, 0); }), "--micro-batches must be 1 or more; 0 was given");
  EXPECT_EQ(input_error_of([] { (void)schedule_of("1f1b", 0, 1); }), "a pipeline needs a rank at least; 0 were given");
  EXPECT_EQ(input_error_of([] { (void)schedule_of("interleaved", 2, 2, 0); }), "--chunks must be 1 or more; 0 was given");
  EXPECT_NE(input_error_of([] { (void)schedule_of("interleaved", 2, 2, 2, -1); }).find("--group"), std::string::npos);
  EXPECT_NE(input_error_of([] { (void)schedule_of("1f1b", 4, 2'000'000'000); }).find("more operations"), std::string::npos);
  EXPECT_NE(input_error_of([] { (void)schedule_of("interleaved", 4, 1, 2'000'000'000); }).find("more operations"),
            std::string::npos);
  EXPECT_NE(input_error_of([] { (void)schedule_of("custom", 2, 2); }).find("CSV"), std::string::npos);
}

TEST(Schedules, OneRankDoesEverythingAlone) {
  for (const std::string& name : schedule_names()) {
    if (name == "custom" || name == "dualpipe") continue;
    const Schedule s = schedule_of(name, 1, 2);
    ASSERT_EQ(s.rank_count(), 1) << name;
    EXPECT_EQ(Assignment(s).stages_of(0).size(), static_cast<std::size_t>(s.stages)) << name;
  }
}

}  // namespace pipeline_schedules_test
}  // namespace ref5d::testing
