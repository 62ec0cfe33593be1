// Messages and their order: nobody waits in vain, and the checker that says so finds what was planted.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "05_pipeline/exchanges.h"
#include "05_pipeline/simulate.h"
#include "tests/support/pipeline_schedules_testing.h"

namespace ref5d::testing {
namespace pipeline_exchanges_test {

using namespace pipeline;

std::string fault_of(const Schedule& s, const Exchanges& e) {
  return input_error_of([&] { expect_no_deadlock(s, e); });
}

TEST(ScheduleExchanges, P36_P37_P38_NoScheduleOfAnySizeStandsStill) {
  for (const Schedule& s : all_schedules(6)) {
    const Exchanges exchanges = make_exchanges(s);
    EXPECT_EQ(fault_of(s, exchanges), "") << size_text(s);
    EXPECT_EQ(fault_of(s, exchanges), "") << size_text(s);
  }
  for (int v = 1; v <= 4; ++v) {
    for (int m = 1; m <= 7; ++m) {
      for (int group = 1; group <= m; ++group) {
        const Schedule s = schedule_of("interleaved", 3, m, v, group);
        EXPECT_EQ(fault_of(s, make_exchanges(s)), "") << size_text(s) << ", groups of " << group;
      }
    }
  }
}

// Previous and next rank are the same one, and forward and backward messages pass between the same two.
TEST(ScheduleExchanges, P37_InterleavedOnTwoRanks) {
  for (const int m : {1, 2, 3, 5, 8}) {
    for (const int v : {2, 3, 4}) {
      const Schedule s = schedule_of("interleaved", 2, m, v);
      EXPECT_EQ(fault_of(s, make_exchanges(s)), "") << m << " " << v;
      EXPECT_EQ(fault_of(s, make_exchanges(s)), "") << m << " " << v;
    }
  }
}

// Of every two neighbour stages on different ranks, each micro-batch's activation and gradient once on both sides.
TEST(ScheduleExchanges, EachMessageOnceOnBothSides) {
  for (const Schedule& s : all_schedules(4)) {
    SCOPED_TRACE(size_text(s));
    const Assignment assignment(s);
    std::map<std::tuple<int, bool, int>, std::pair<int, int>> times;  // stage, of a forward, micro-batch: sent, received
    const Exchanges exchanges = make_exchanges(s);
    for (int r = 0; r < s.rank_count(); ++r) {
      for (const Exchange& e : exchanges[static_cast<std::size_t>(r)]) {
        EXPECT_FALSE(e.sends.empty() && e.receives.empty());
        const auto key = [](const pipeline::Message& m) {
          return std::tuple(m.made_by.stage, m.made_by.pass == Pass::kForward, m.made_by.micro_batch);
        };
        for (const pipeline::Message& m : e.sends) {
          ASSERT_EQ(m.from, r);
          ++times[key(m)].first;
        }
        for (const pipeline::Message& m : e.receives) {
          ASSERT_EQ(m.to, r);
          ++times[key(m)].second;
        }
        for (const pipeline::Message& m : e.sends) {
          ASSERT_NE(m.from, m.to);
          ASSERT_EQ(assignment.rank_of(m.made_by.stage, m.made_by.micro_batch), m.from);
          const int next = m.made_by.stage + (m.made_by.pass == Pass::kForward ? 1 : -1);
          ASSERT_EQ(assignment.rank_of(next, m.made_by.micro_batch), m.to);
          ASSERT_NE(m.made_by.pass, Pass::kWeight);
        }
      }
    }
    std::size_t expected = 0;
    for (int stage = 0; stage + 1 < s.stages; ++stage) {
      for (int m = 0; m < s.micro_batches; ++m) {
        if (assignment.rank_of(stage, m) == assignment.rank_of(stage + 1, m)) continue;
        expected += 2;
        ASSERT_EQ(times[std::tuple(stage, true, m)], std::pair(1, 1));
        ASSERT_EQ(times[std::tuple(stage + 1, false, m)], std::pair(1, 1));
      }
    }
    ASSERT_EQ(times.size(), expected);
  }
}

TEST(ScheduleExchanges, WhatIsSentAndReceivedAtOneTimeIsOneExchange) {
  const Exchanges e = make_exchanges(schedule_of("1f1b", 2, 2));
  // Rank 0: F0 F1 B0 B1. Rank 1: F0 B0 F1 B1, from time 1 on.
  const Operation f0{0, Pass::kForward, 0}, f1{0, Pass::kForward, 1}, b0{1, Pass::kBackward, 0}, b1{1, Pass::kBackward, 1};
  ASSERT_EQ(e[0].size(), 4u);
  EXPECT_EQ(e[0][0].before_cell, 1u);
  EXPECT_EQ(e[0][0].sends, (std::vector<pipeline::Message>{{f0, 0, 1}}));
  EXPECT_EQ(e[0][1].sends, (std::vector<pipeline::Message>{{f1, 0, 1}}));
  EXPECT_EQ(e[0][2].before_cell, 2u);
  EXPECT_EQ(e[0][2].receives, (std::vector<pipeline::Message>{{b0, 1, 0}}));
  EXPECT_EQ(e[0][3].receives, (std::vector<pipeline::Message>{{b1, 1, 0}}));
  ASSERT_EQ(e[1].size(), 4u);
  EXPECT_EQ(e[1][0].before_cell, 0u);
  EXPECT_EQ(e[1][0].receives, (std::vector<pipeline::Message>{{f0, 0, 1}}));
  EXPECT_EQ(e[1][2].sends, (std::vector<pipeline::Message>{{b0, 1, 0}}));
  // In the steady part a rank sends and receives at once.
  bool both = false;
  const Exchanges longer = make_exchanges(schedule_of("1f1b", 4, 8));
  for (const Exchange& x : longer[1]) both = both || (!x.sends.empty() && !x.receives.empty());
  EXPECT_TRUE(both);
}

TEST(ScheduleExchanges, HalvedBackwardsSendAfterTheInputHalf) {
  const Exchanges exchanges = make_exchanges(schedule_of("zb-h1", 2, 3));
  for (const Exchange& e : exchanges[1]) {
    for (const pipeline::Message& m : e.sends) EXPECT_EQ(m.made_by.pass, Pass::kInput);
  }
}

TEST(ScheduleExchanges, OneRankHasNone) {
  for (const char* name : {"gpipe", "interleaved", "zb-v", "dualpipev"}) {
    const Schedule s = schedule_of(name, 1, 4);
    EXPECT_TRUE(make_exchanges(s)[0].empty());
    EXPECT_TRUE(naive_exchanges(s)[0].empty());
    EXPECT_EQ(fault_of(s, make_exchanges(s)), "");
  }
}

// Two neighbours that both send before they receive.
TEST(ScheduleExchanges, P38_NaiveBlockingCallsStandStill) {
  const Schedule s = schedule_of("1f1b", 2, 4);
  EXPECT_EQ(
      fault_of(s, naive_exchanges(s)),
      "schedule 1f1b stands still: rank 0 sends 0F1 to rank 1, which has not got to receive it; rank 1 sends 1B0 to rank 0, "
      "which has not got to receive it");
  for (const int p : {2, 3, 4, 8}) {
    for (const char* name : {"1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v"}) {
      const Schedule longer = schedule_of(name, p, 2 * p);
      EXPECT_NE(fault_of(longer, naive_exchanges(longer)), "") << size_text(longer);
    }
    // GPipe's ranks never have messages both ways at a time.
    const Schedule gpipe = schedule_of("gpipe", p, 2 * p);
    EXPECT_EQ(fault_of(gpipe, naive_exchanges(gpipe)), "");
  }
}

// A stream of its own for messages does not help where they go one by one.
TEST(ScheduleExchanges, P38_NaiveOrderOnOneMessageStreamStandsStill) {
  const Schedule s = schedule_of("1f1b", 4, 8);
  EXPECT_NE(fault_of(s, naive_exchanges(s)), "");
}

// Swapping what two of a rank's exchanges receive from one sender, which sends it in the other order.
TEST(ScheduleExchanges, APlantedReorderingIsFound) {
  for (const char* name : {"1f1b", "interleaved", "zb-v", "dualpipe"}) {
    const Schedule s = schedule_of(name, 4, 8);
    const Exchanges good = make_exchanges(s);
    int planted = 0;
    for (std::size_t r = 0; r < good.size(); ++r) {
      for (std::size_t a = 0; a + 1 < good[r].size(); ++a) {
        const auto &first = good[r][a].receives, &second = good[r][a + 1].receives;
        if (first.empty() || second.empty() || first[0].from != second[0].from) continue;
        Exchanges swapped = good;
        std::swap(swapped[r][a].receives, swapped[r][a + 1].receives);
        EXPECT_NE(fault_of(s, swapped), "") << name << " " << r << " " << a;
        ++planted;
      }
    }
    EXPECT_GE(planted, 10) << name;
  }
}

// Two ranks that go through the same two exchanges in different orders: each waits in the one for the other, which is in the
// other one.
TEST(ScheduleExchanges, P38_ExchangesInDifferentOrdersStandStill) {
  const Schedule s = schedule_of("1f1b", 2, 4);
  Exchanges e = make_exchanges(s);
  // Rank 1's gradient of micro-batch 0 in an exchange before the one in which it receives micro-batch 1, and on rank 0 after.
  const Operation b0{1, Pass::kBackward, 0}, f1{0, Pass::kForward, 1};
  const auto place_of = [&](std::size_t rank, const Operation& o) {
    for (std::size_t x = 0; x < e[rank].size(); ++x) {
      for (const auto* list : {&e[rank][x].sends, &e[rank][x].receives}) {
        for (const pipeline::Message& m : *list) {
          if (m.made_by == o) return x;
        }
      }
    }
    return e[rank].size();
  };
  ASSERT_LT(place_of(0, f1), place_of(0, b0));
  ASSERT_LT(place_of(1, f1), place_of(1, b0));
  const std::size_t f = place_of(1, f1), b = place_of(1, b0);
  std::swap(e[1][f].sends, e[1][b].sends);
  std::swap(e[1][f].receives, e[1][b].receives);
  e[1][f].before_cell = e[1][b].before_cell = 2;  // after B0, and before F1
  EXPECT_EQ(
      fault_of(s, e),
      "schedule 1f1b stands still: rank 0 sends 0F1 to rank 1, which has not got to receive it; rank 1 sends 1B0 to rank 0, "
      "which has not got to receive it");
}

// Also inside one batch, where nobody would stand still, but the tensors would be each other's.
TEST(ScheduleExchanges, P37_SwappedMessagesOfOneBatchAreFound) {
  const Schedule s = schedule_of("dualpipev", 2, 4);  // F&B sends two at once
  Exchanges e = make_exchanges(s);
  int swapped = 0;
  for (std::vector<Exchange>& row : e) {
    for (Exchange& x : row) {
      if (x.receives.size() < 2) continue;
      std::swap(x.receives[0], x.receives[1]);
      ++swapped;
    }
  }
  ASSERT_GT(swapped, 0);
  EXPECT_NE(fault_of(s, e).find("where it is received"), std::string::npos) << fault_of(s, e);
}

TEST(ScheduleExchanges, MissingDoubledAndForeignMessagesAreFound) {
  const Schedule s = schedule_of("1f1b", 2, 2);
  const Exchanges good = make_exchanges(s);
  Exchanges e = good;
  e[1][0].receives.clear();
  EXPECT_EQ(fault_of(s, e),
            "the message of 0F0 from rank 0 to rank 1 is sent 1 times and received 0 times; it must be once each");
  e = good;
  e[0][0].sends.push_back(e[0][0].sends[0]);
  EXPECT_EQ(fault_of(s, e),
            "the message of 0F0 from rank 0 to rank 1 is sent 2 times and received 1 times; it must be once each");
  e = good;
  e[0][0].sends.push_back({{0, Pass::kBackward, 0}, 0, 1});
  EXPECT_EQ(fault_of(s, e), "rank 0 sends the message of 0B0 from rank 0 to rank 1, which the schedule does not have");
  e = good;
  e[0][0].receives.push_back(e[0][0].sends[0]);
  EXPECT_EQ(fault_of(s, e), "rank 0 receives the message of 0F0 from rank 0 to rank 1, which the schedule does not have");
  e = good;
  e.pop_back();
  EXPECT_EQ(fault_of(s, e), "schedule 1f1b has 2 ranks, but there are exchanges of 1");
}

TEST(ScheduleExchanges, MessagesTooEarlyOrTooLateAreFound) {
  const Schedule s = schedule_of("1f1b", 2, 2);
  const Exchanges good = make_exchanges(s);
  Exchanges e = good;
  e[0][0].before_cell = 0;
  EXPECT_EQ(fault_of(s, e), "rank 0 sends the message of 0F0 from rank 0 to rank 1 before it is made");
  e = good;
  e[1][0].before_cell = 1;
  EXPECT_EQ(fault_of(s, e), "rank 1 receives the message of 0F0 from rank 0 to rank 1 after it is needed");
  e = good;
  e[0][3].before_cell = 1;
  EXPECT_EQ(fault_of(s, e), "rank 0's exchange 3 is started before its exchange 2; exchanges go in order");
}

TEST(ScheduleExchanges, AScheduleThatWaitsForItselfIsRefused) {
  Schedule s = schedule_of("1f1b", 2, 2);
  std::swap(s.ranks[1][0], s.ranks[1][2]);
  std::swap(s.ranks[1][1], s.ranks[1][3]);
  std::swap(s.ranks[0][1], s.ranks[0][2]);
  EXPECT_NE(input_error_of([&] { (void)make_exchanges(s); }).find("waits for itself"), std::string::npos);
  EXPECT_NE(fault_of(s, naive_exchanges(s)), "");

  // Rank 0: F0 B0 F1 B1. Rank 1: F1 B1 F0 B0. All that can be received early is.
  const Operation f0{0, Pass::kForward, 0}, f1{0, Pass::kForward, 1}, b0{1, Pass::kBackward, 0}, b1{1, Pass::kBackward, 1};
  const Exchanges e = {{{1, {{f0, 0, 1}}, {}}, {1, {}, {{b1, 1, 0}}}, {1, {}, {{b0, 1, 0}}}, {3, {{f1, 0, 1}}, {}}},
                       {{0, {}, {{f0, 0, 1}}}, {0, {}, {{f1, 0, 1}}}, {2, {{b1, 1, 0}}, {}}, {4, {{b0, 1, 0}}, {}}}};
  EXPECT_EQ(
      fault_of(s, e),
      "schedule 1f1b stands still: rank 0 receives 1B1 from rank 1, which has not got to send it; rank 1 receives 0F1 from "
      "rank 0, which has not got to send it");
}

// Neighbour stages on one rank need no message, but their order.
TEST(ScheduleExchanges, ARankThatWaitsForItselfIsFound) {
  const Schedule s{"x",
                   3,
                   1,
                   {{{{1, Pass::kForward, 0}, {}},
                     {{0, Pass::kForward, 0}, {}},
                     {{1, Pass::kBackward, 0}, {}},
                     {{0, Pass::kBackward, 0}, {}}},
                    {{{2, Pass::kForward, 0}, {}}, {{2, Pass::kBackward, 0}, {}}}}};
  EXPECT_EQ(
      fault_of(s, naive_exchanges(s)),
      "schedule x stands still: rank 0 waits to begin 1F0; rank 1 receives 1F0 from rank 0, which has not got to send it");
  EXPECT_EQ(input_error_of([&] { (void)make_exchanges(s); }),
            "schedule x waits for itself: rank 0 at 1F0, rank 1 at 2F0; what a cell needs must not come after it");
}

}  // namespace pipeline_exchanges_test
}  // namespace ref5d::testing
