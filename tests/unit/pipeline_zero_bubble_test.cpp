// The bubble rates of the Zero Bubble paper (Qi et al. 2023): table 5, from the times of its table 9.
#include <gtest/gtest.h>

#include <cmath>

#include "05_pipeline/simulate.h"
#include "tests/support/pipeline_schedules_testing.h"

namespace ref5d::testing {
namespace pipeline_zero_bubble_test {

using namespace pipeline;

struct TableRow {
  int ranks, micro_batches, chunks;
  double forward, input, weight, message;
  double one_f_one_b, interleaved, h1, h2;  // rates
  [[nodiscard]] double all() const { return forward + input + weight; }
};

constexpr TableRow kTable[] = {
    {8, 24, 3, 18.522, 18.086, 9.337, .601, .2431, .1055, .1585, .1083},
    {8, 32, 3, 18.513, 18.086, 9.331, .626, .1985, .0818, .1242, .0837},
    {8, 64, 3, 18.546, 18.097, 9.321, .762, .1240, .0443, .0674, .0444},
    {8, 24, 4, 29.718, 29.444, 19.927, .527, .2347, .0808, .1323, .0698},
    {8, 32, 4, 29.802, 29.428, 19.530, .577, .1898, .0628, .1045, .0559},
    {8, 64, 4, 29.935, 29.621, 19.388, .535, .1091, .0320, .0554, .0294},
    {16, 48, 3, 11.347, 11.248, 8.132, .377, .2552, .1104, .1397, .0672},
    {16, 64, 3, 11.307, 11.254, 8.101, .379, .2082, .0852, .1088, .0516},
    {16, 128, 3, 11.325, 11.308, 8.109, .378, .1251, .0445, .0576, .0266},
    {32, 96, 2, 10.419, 10.207, 7.715, .408, .2646, .1493, .1421, .0641},
    {32, 128, 2, 10.408, 10.204, 7.703, .408, .2168, .1164, .1106, .0490},
    {32, 256, 2, 10.402, 10.248, 7.698, .460, .1352, .0624, .0594, .0257},
};

double four_decimals(double x) { return std::round(x * 1e4) / 1e4; }

Simulation run_of(const char* name, const TableRow& row, int chunks) {
  const double part = 1.0 / chunks;
  return simulate(schedule_of(name, row.ranks, row.micro_batches, chunks),
                  uniform_costs(row.forward * part, row.input * part, row.weight * part, row.message));
}

TEST(ScheduleSimulation, ZeroBubblePaperRates) {
  for (const TableRow& row : kTable) {
    SCOPED_TRACE(std::to_string(row.ranks) + " ranks, " + std::to_string(row.micro_batches) + " micro-batches");
    EXPECT_DOUBLE_EQ(four_decimals(run_of("1f1b", row, 1).bubble_rate()), row.one_f_one_b);
    EXPECT_DOUBLE_EQ(four_decimals(run_of("zb-h1", row, 1).bubble_rate()), row.h1);
    EXPECT_DOUBLE_EQ(four_decimals(run_of("zb-h2", row, 1).bubble_rate()), row.h2);
  }
}

// The paper's interleaved rates are those of this cost; the order, with latency on every way between ranks, pays it 2(pv-1)
// times rather than 2pv-2-p times, and so has 0.08 to 0.35 points more.
TEST(ScheduleSimulation, ZeroBubblePaperRatesOfInterleaved) {
  for (const TableRow& row : kTable) {
    SCOPED_TRACE(std::to_string(row.ranks) + " ranks, " + std::to_string(row.micro_batches) + " micro-batches");
    const int p = row.ranks, v = row.chunks;
    const double busy = row.micro_batches * row.all(), without_latency = busy + (p - 1) * row.all() / v;
    const double paper = without_latency + (2 * p * v - 2 - p) * row.message;
    EXPECT_DOUBLE_EQ(four_decimals((paper - busy) / paper), row.interleaved);

    const Simulation run = run_of("interleaved", row, v);
    EXPECT_NEAR(run.cost(), without_latency + 2 * (p * v - 1) * row.message, 1e-6);
    EXPECT_GT(run.bubble_rate(), row.interleaved + 0.0007);
    EXPECT_LT(run.bubble_rate(), row.interleaved + 0.0036);
  }
}

// Why the paper's cost is per rank: from the first rank's begin to the last rank's end it would be another number.
TEST(ScheduleSimulation, ZeroBubblePaperCostIsNotTheMakespan) {
  const TableRow& row = kTable[3];
  const Simulation run = run_of("zb-h2", row, 1);
  EXPECT_DOUBLE_EQ(four_decimals((run.makespan - run.busy(0)) / run.makespan), .1003);
}

}  // namespace pipeline_zero_bubble_test
}  // namespace ref5d::testing
