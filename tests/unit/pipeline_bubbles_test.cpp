// How long schedules take: the closed forms of the papers, exactly.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "05_pipeline/simulate.h"
#include "tests/support/pipeline_schedules_testing.h"

namespace ref5d::testing {
namespace pipeline_bubbles_test {

using namespace pipeline;

struct Times {
  double forward, input, weight;
  [[nodiscard]] double all() const { return forward + input + weight; }
};

// Idle time on the rank whose own span is longest.
double bubble(const Schedule& schedule, const Times& t) {
  const Simulation run = simulate(schedule, uniform_costs(t.forward, t.input, t.weight));
  return run.cost() - run.busy(0);
}

constexpr Times kAnyTimes[] = {{1, 1, 1}, {1, 1.5, 0.5}, {3, 1, 1}, {1, 3, 0.25}, {1, 2, 1.5}, {1, 0.5, 0.75}, {4, 4, 3}};
// Where W fits into the gaps that F leaves: the Zero Bubble forms hold for T_W <= T_F.
constexpr Times kZeroBubbleTimes[] = {{1, 1, 1}, {1, 1.5, 0.5}, {3, 1, 1}, {1, 3, 0.25}, {1, 0.5, 0.75}, {4, 4, 3}, {1, 2, 1}};

TEST(ScheduleSimulation, MakespansOfFourRanksAndEightMicroBatches) {
  const auto run = [](const char* name) { return simulate(schedule_of(name, 4, 8), uniform_costs(1, 1, 1)); };
  EXPECT_EQ(run("gpipe").makespan, 33);
  EXPECT_EQ(run("1f1b").makespan, 33);
  EXPECT_EQ(run("zb-h1").makespan, 27);
  // Per rank: the last rank starts three later, and ends three later.
  const Simulation h2 = run("zb-h2");
  for (int r = 0; r < 4; ++r) EXPECT_EQ(h2.own_span(r), 24) << r;
  EXPECT_EQ(h2.makespan, 27);
}

// (p-1)(T_F+T_B+T_W), on every rank, for any times and any number of micro-batches.
TEST(ScheduleSimulation, GPipeAndOneForwardOneBackwardBubble) {
  for (const Times& t : kAnyTimes) {
    for (const int p : {1, 2, 4, 7}) {
      for (const int m : {1, 2, p, 3 * p + 1}) {
        for (const char* name : {"gpipe", "1f1b"}) {
          const Simulation run = simulate(schedule_of(name, p, m), uniform_costs(t.forward, t.input, t.weight));
          for (int r = 0; r < p; ++r) EXPECT_NEAR(run.idle(r), (p - 1) * t.all(), 1e-9) << name << " " << p << " " << m;
        }
      }
    }
  }
}

// (p-1)(T_F+T_B+T_W)/v, a chunk taking 1/v of the times; also where p does not divide m (groups of a little more than p).
TEST(ScheduleSimulation, P37_InterleavedBubble) {
  for (const Times& t : kAnyTimes) {
    for (const int p : {2, 4, 6}) {
      for (const int v : {2, 3}) {
        for (const int m : {p, 2 * p, 4 * p, 2 * p + 1, 3 * p - 1}) {
          const double chunk = 1.0 / v;
          const Times of_chunk{t.forward * chunk, t.input * chunk, t.weight * chunk};
          EXPECT_NEAR(bubble(schedule_of("interleaved", p, m, v), of_chunk), (p - 1) * t.all() / v, 1e-9) << p << v << m;
        }
      }
    }
  }
}

// Groups that are smaller than p make ranks wait for their next chunk: it works, and takes longer.
TEST(ScheduleSimulation, SmallInterleavedGroupsTakeLonger) {
  const auto makespan = [](int group) {
    return simulate(schedule_of("interleaved", 4, 12, 2, group), uniform_costs(1, 1, 1)).makespan;
  };
  EXPECT_EQ(makespan(0), makespan(4));
  EXPECT_EQ(makespan(12), makespan(4));
  EXPECT_GT(makespan(3), makespan(4));
  EXPECT_GT(makespan(2), makespan(3));
  EXPECT_GT(makespan(1), makespan(2));
}

// No size and no group waits for itself.
TEST(ScheduleSimulation, P36_P37_InterleavedOfEverySizeComesToItsEnd) {
  for (int p = 1; p <= 8; ++p) {
    for (int v = 1; v <= 4; ++v) {
      for (int m = 1; m <= 3 * p; m += p > 4 ? 2 : 1) {
        for (int group = 0; group <= m; group += group > p ? 5 : 1) {
          EXPECT_NO_THROW((void)simulate(schedule_of("interleaved", p, m, v, group), uniform_costs(1, 1, 1)))
              << p << " " << v << " " << m << " " << group;
        }
      }
    }
  }
}

// Qi et al. 2023, table 2: (p-1)(T_F+T_B-T_W) and (p-1)(T_F+T_B-2T_W).
TEST(ScheduleSimulation, ZeroBubbleH1AndH2) {
  for (const Times& t : kZeroBubbleTimes) {
    for (const int p : {1, 2, 4, 6}) {
      for (const int m : {2 * p, 3 * p + 1}) {
        EXPECT_NEAR(bubble(schedule_of("zb-h1", p, m), t), (p - 1) * (t.forward + t.input - t.weight), 1e-9) << p << " " << m;
        EXPECT_NEAR(bubble(schedule_of("zb-h2", p, m), t), (p - 1) * (t.forward + t.input - 2 * t.weight), 1e-9)
            << p << " " << m;
      }
    }
  }
}

// For m <= p and T_W <= T_B: 1F1B takes (m+p-1)(T_F+T_B+T_W), and with halves (m+p-1)(T_F+T_B)+T_W. (H2 leaves twice as many W
// for a rank's end as H1, and so needs 2 T_W <= T_B for it.)
TEST(ScheduleSimulation, P36_FewMicroBatches) {
  for (const Times& t : {Times{1, 1.5, 0.5}, {1, 2, 1}, {2, 3, 2}, {1, 1, 1}}) {
    for (int p = 1; p <= 6; ++p) {
      for (int m = 1; m <= p; ++m) {
        const auto makespan = [&](const char* name) {
          return simulate(schedule_of(name, p, m), uniform_costs(t.forward, t.input, t.weight)).makespan;
        };
        const double halved = (m + p - 1) * (t.forward + t.input) + t.weight;
        EXPECT_NEAR(makespan("1f1b"), (m + p - 1) * t.all(), 1e-9);
        EXPECT_NEAR(makespan("zb-h1"), halved, 1e-9);
        if (2 * t.weight <= t.input) {
          EXPECT_NEAR(makespan("zb-h2"), halved, 1e-9);
        }
      }
    }
  }
}

// No rank is idle between its first and its last cell, at equal times and with at least 2p micro-batches.
TEST(ScheduleSimulation, ZeroBubbleVHasNoBubble) {
  for (int p = 1; p <= 8; ++p) {
    for (int m = 2 * p; m <= 4 * p + 1; ++m) {
      const Simulation run = simulate(schedule_of("zb-v", p, m), uniform_costs(1, 1, 1));
      for (int r = 0; r < p; ++r) EXPECT_EQ(run.own_span(r), 6 * m) << p << " " << m << " " << r;
    }
  }
  const Simulation fewer = simulate(schedule_of("zb-v", 4, 6), uniform_costs(1, 1, 1));
  EXPECT_GT(fewer.cost(), 36);
}

TEST(ScheduleSimulation, DualPipeVOfFourRanksAndTenMicroBatches) {
  const Simulation run = simulate(schedule_of("dualpipev", 4, 10), uniform_costs(1, 1, 1));
  EXPECT_EQ(run.makespan, 66);
  for (int r = 0; r < 4; ++r) EXPECT_EQ(run.idle(r), 6) << r;
}

// (H-1)(T_F&B + T_B' - 3T_W), H ranks from an end to the middle; F&B as long as its parts, or shorter where they overlap. It
// holds where F and I take as long as each other and F&B no less than a whole backward.
TEST(ScheduleSimulation, DualPipeBubble) {
  for (const Times& t : {Times{1, 1, 1}, {4, 4, 3}, {2, 2, 1}, {1, 1, 0.25}}) {
    for (const double overlap : {1.0, 0.8}) {
      const Costs parts = uniform_costs(t.forward, t.input, t.weight);
      Costs costs = parts;
      costs.of_cell = [&](int r, const Cell& cell) { return parts.of_cell(r, cell) * (cell.beside ? overlap : 1); };
      const double both = t.all() * overlap, backward = t.input + t.weight;
      for (const int p : {2, 4, 6}) {
        for (const int m : {2 * p, 2 * p + 2, 4 * p}) {
          for (const char* name : {"dualpipe", "dualpipev"}) {
            const Schedule s = schedule_of(name, p, m);
            const Simulation run = simulate(s, costs);
            double most_idle = 0;
            for (int r = 0; r < p; ++r) most_idle = std::max(most_idle, run.idle(r));
            const int half = s.stages == p ? p / 2 : p;
            EXPECT_NEAR(most_idle, (half - 1) * (both + backward - 3 * t.weight), 1e-9) << size_text(s) << " " << overlap;
          }
        }
      }
    }
  }
}

// A message's latency is added once for each rank that a micro-batch comes to.
TEST(ScheduleSimulation, LatencyIsPaidBetweenRanksOnly) {
  EXPECT_EQ(simulate(schedule_of("1f1b", 4, 1), uniform_costs(1, 1, 1, 10)).makespan, 12 + 6 * 10);
  EXPECT_EQ(simulate(schedule_of("1f1b", 1, 5), uniform_costs(1, 1, 1, 10)).makespan, 15);
  // A V: 3 ranks down and 3 up, and back; at the turn a micro-batch stays on its rank.
  const auto v_takes = [](double latency) {
    return simulate(schedule_of("zb-v", 4, 1), uniform_costs(1, 1, 1, latency)).makespan;
  };
  EXPECT_EQ(v_takes(10) - v_takes(0), 12 * 10);
}

TEST(ScheduleSimulation, CostsMayDifferByRank) {
  Costs costs = uniform_costs(1, 1, 1);
  costs.of_cell = [](int rank, const Cell& cell) {
    return (rank == 1 ? 2.0 : 1.0) * (cell.operation.pass == Pass::kForward ? 1 : 2);
  };
  const Simulation run = simulate(schedule_of("1f1b", 2, 4), costs);
  EXPECT_EQ(run.makespan, 1 + 4 * 6 + 2);
  EXPECT_EQ(run.busy(0), 12);
  EXPECT_EQ(run.busy(1), 24);
  EXPECT_EQ(run.work(), 36);
  EXPECT_EQ(run.idle(1), 3);
}

// Each cell begins when what it needs is there, and no sooner: told on a case that is small enough to be told.
TEST(ScheduleSimulation, EveryBeginning) {
  const Simulation run = simulate(schedule_of("1f1b", 2, 2), uniform_costs(1, 1, 1, 0.5));
  const auto begins = [&](std::size_t r) {
    std::vector<double> times;
    for (const Interval& i : run.ranks[r]) times.push_back(i.begin);
    return times;
  };
  EXPECT_EQ(begins(0), (std::vector<double>{0, 1, 5, 8}));          // F0 F1 B0 B1
  EXPECT_EQ(begins(1), (std::vector<double>{1.5, 2.5, 4.5, 5.5}));  // F0 B0 F1 B1
  EXPECT_EQ(run.makespan, 10);
}

TEST(ScheduleSimulation, AScheduleThatWaitsForItselfIsRefused) {
  Schedule s = schedule_of("1f1b", 2, 2);
  std::swap(s.ranks[0][1], s.ranks[0][2]);  // F0 B0 F1 B1: fine, if slow
  EXPECT_NO_THROW((void)simulate(s, uniform_costs(1, 1, 1)));
  std::swap(s.ranks[1][0], s.ranks[1][2]);  // the last rank's F1 and F0
  std::swap(s.ranks[1][1], s.ranks[1][3]);
  EXPECT_EQ(input_error_of([&] { (void)simulate(s, uniform_costs(1, 1, 1)); }),
            "schedule 1f1b waits for itself: rank 0 at 0B0, rank 1 at 1F1; what a cell needs must not come after it");
}

}  // namespace pipeline_bubbles_test
}  // namespace ref5d::testing
