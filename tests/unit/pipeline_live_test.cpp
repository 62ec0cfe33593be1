// What ranks keep while a schedule runs.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "05_pipeline/live.h"
#include "tests/support/pipeline_schedules_testing.h"

namespace ref5d::testing {
namespace pipeline_live_test {

using namespace pipeline;

// Most memory at once, if activations take `before` until B or I, and from I to W `after` of it stays.
double peak_memory(const Schedule& schedule, int rank, double before, double after) {
  double peak = 0;
  for (const Live& live : live_after(schedule, rank)) {
    peak = std::max(peak, live.all_activations() * before + live.all_weight_work() * after);
  }
  return peak;
}

TEST(ScheduleMemory, AfterEachCell) {
  const std::vector<Live> live = live_after(schedule_of("zb-h1", 2, 3), 1);  // F0 I0 F1 I1 W0 F2 I2 W1 W2
  std::vector<int> activations, weight_work;
  for (const Live& l : live) {
    EXPECT_EQ(l.activations[0], 0);  // the other rank's stage
    activations.push_back(l.activations[1]);
    weight_work.push_back(l.weight_work[1]);
  }
  EXPECT_EQ(activations, (std::vector<int>{1, 0, 1, 0, 0, 1, 0, 0, 0}));
  EXPECT_EQ(weight_work, (std::vector<int>{0, 1, 1, 2, 1, 1, 2, 1, 0}));
}

TEST(ScheduleMemory, P42_NothingIsLeftAtTheEnd) {
  for (const Schedule& s : all_schedules(4)) {
    for (int r = 0; r < s.rank_count(); ++r) {
      EXPECT_EQ(live_after(s, r).back().all_activations(), 0) << size_text(s);
      EXPECT_EQ(live_after(s, r).back().all_weight_work(), 0) << size_text(s);
    }
  }
}

TEST(ScheduleMemory, GPipeKeepsEveryMicroBatch) {
  for (int m = 1; m <= 9; ++m) {
    for (int r = 0; r < 3; ++r) EXPECT_EQ(peak_activations(schedule_of("gpipe", 3, m), r), m);
  }
}

TEST(ScheduleMemory, P42_OneForwardOneBackwardKeepsAsManyAsRanksFollow) {
  for (int p = 1; p <= 6; ++p) {
    for (int m = 1; m <= 2 * p + 1; ++m) {
      for (int r = 0; r < p; ++r)
        EXPECT_EQ(peak_activations(schedule_of("1f1b", p, m), r), std::min(m, p - r)) << p << " " << m;
    }
  }
}

// Korthikanti et al. 2022, section 4.2.3: on the first rank 1 + (p-1)/(pv) times 1F1B's p v chunks.
TEST(ScheduleMemory, InterleavedKeepsMore) {
  for (const int p : {2, 4, 8}) {
    for (const int v : {2, 3, 4}) EXPECT_EQ(peak_activations(schedule_of("interleaved", p, 4 * p, v), 0), p * v + p - 1);
  }
}

// Zero Bubble, section 2.3, worker i from 1: (p-i+1)M_B + (i-1)M_W and (2p-2i+1)M_B + (2i-2)M_W. (Right after an I that is not
// followed by its own W there is one M_W more and one M_B less, which is no more as long as M_W <= M_B.)
TEST(ScheduleMemory, ZeroBubbleH1AndH2PerWorker) {
  for (const int p : {1, 2, 4, 5}) {
    const Schedule h1 = schedule_of("zb-h1", p, 4 * p), h2 = schedule_of("zb-h2", p, 4 * p);
    double most_h1 = 0, most_h2 = 0;
    for (int r = 0; r < p; ++r) {
      const int i = r + 1;
      EXPECT_EQ(peak_activations(h1, r), p - i + 1);
      EXPECT_EQ(peak_activations(h2, r), 2 * p - 2 * i + 1);
      for (const double kept : {0.5, 0.75, 1.0}) {
        EXPECT_EQ(peak_memory(h1, r, 1, kept), (p - i + 1) + (i - 1) * kept) << p << " " << r;
        EXPECT_EQ(peak_memory(h2, r, 1, kept), (2 * p - 2 * i + 1) + (2 * i - 2) * kept) << p << " " << r;
      }
      most_h1 = std::max(most_h1, peak_memory(h1, r, 1, 0.5));
      most_h2 = std::max(most_h2, peak_memory(h2, r, 1, 0.5));
    }
    EXPECT_EQ(most_h1, p);
    EXPECT_EQ(most_h2, 2 * p - 1);
  }
}

// A chunk is half a rank's layers: 2p of them are 1F1B's p, and here on every rank.
TEST(ScheduleMemory, ZeroBubbleVKeepsNoMoreThanOneForwardOneBackward) {
  for (int p = 1; p <= 8; ++p) {
    for (int m = 1; m <= 4 * p; ++m) {
      const Schedule s = schedule_of("zb-v", p, m);
      for (int r = 0; r < p; ++r) {
        EXPECT_LE(peak_activations(s, r), 2 * p) << size_text(s);
        if (m >= 2 * p) {
          EXPECT_EQ(peak_activations(s, r), 2 * p) << size_text(s);
        }
        EXPECT_LE(peak_memory(s, r, 1, 0.99), 2 * p) << size_text(s);
      }
    }
  }
}

// p+1 at most for DualPipe; for DualPipeV the same count with its p ranks in place of p/2.
TEST(ScheduleMemory, P46_DualPipeKeepsOneMoreThanRanks) {
  for (const int p : {2, 4, 6}) {
    for (const int m : {2 * p, 2 * p + 2, 4 * p}) {
      const Schedule whole = schedule_of("dualpipe", p, m), v = schedule_of("dualpipev", p, m);
      int most = 0, most_v = 0;
      for (int r = 0; r < p; ++r) {
        most = std::max(most, peak_activations(whole, r));
        most_v = std::max(most_v, peak_activations(v, r));
      }
      EXPECT_EQ(most, p + 1) << p << " " << m;
      EXPECT_EQ(most_v, 2 * p + 1) << p << " " << m;
    }
  }
}

}  // namespace pipeline_live_test
}  // namespace ref5d::testing
