// What no schedule may be: each fault is found, and named in one line.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "05_pipeline/schedule_csv.h"
#include "tests/support/pipeline_schedules_testing.h"

namespace ref5d::testing {
namespace pipeline_assignment_test {

using namespace pipeline;

std::string fault_of(const std::string& csv) {
  return input_error_of([&] { const Assignment whole(parse_csv(csv, "x")); });
}

TEST(Schedules, AWholeScheduleHasNoFault) {
  EXPECT_EQ(fault_of("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"), "");
  EXPECT_EQ(fault_of("0F0,0I0,0W0\n1F0,1B0\n"), "");
  EXPECT_EQ(fault_of("0F0,0F1,(0F2;0B0)OVERLAP_F_B,0B1,0B2\n"), "");
}

TEST(Schedules, MissingOperationsAreNamed) {
  EXPECT_EQ(fault_of("0F0,0F1,0B0,0B1\n1F0,1B0,1B1\n"), "schedule x: it has 3 forwards; 2 stages and 2 micro-batches need 4");
  EXPECT_EQ(fault_of("0F0,0F1,0B0,0B1\n1F0,1B0,1F1\n"),
            "schedule x: 1B1 is missing; after 1F1 it needs 1B1, or 1I1 and later 1W1");
  EXPECT_EQ(fault_of("0F0,0I0\n"), "schedule x: 0W0 is missing; after 0I0 the weights' gradients are due");
  EXPECT_EQ(fault_of("0F0,0W0\n"), "schedule x: 0I0 is missing; 0W0 needs it");
  EXPECT_EQ(fault_of("0F0,1F1,0B0,1B1,2F0,2F1,0B0\n"), "schedule x: it has 4 forwards; 3 stages and 2 micro-batches need 6");
  EXPECT_EQ(fault_of("0F0,0B0,999999F999999\n"),
            "schedule x: it has 2 forwards; 1000000 stages and 1000000 micro-batches need 1000000000000");
}

TEST(Schedules, OperationsThatOccurTwiceAreNamed) {
  EXPECT_EQ(fault_of("0F0,0B0,0B0\n"), "schedule x: 0B0 occurs twice, on rank 0 and on rank 0; each operation is done once");
  EXPECT_EQ(fault_of("0F0,0B0,1B0\n0F0,1B0\n"),
            "schedule x: 0F0 occurs twice, on rank 0 and on rank 1; each operation is done once");
  EXPECT_EQ(fault_of("0F0,0B0,0W0\n"),
            "schedule x: it has both 0B0 and 0W0; a backward is either whole (B) or in halves (I, later W)");
}

TEST(Schedules, PassesOfOneStageAndMicroBatchBelongOnOneRank) {
  EXPECT_EQ(fault_of("0F0,1B0\n1F0,0B0\n"),
            "schedule x: 0F0 is on rank 0 and 0B0 on rank 1; a stage's passes of a micro-batch belong on one rank");
  EXPECT_EQ(fault_of("0F0,0I0\n0W0\n"),
            "schedule x: 0I0 is on rank 0 and 0W0 on rank 1; a stage's passes of a micro-batch belong on one rank");
}

TEST(Schedules, PassesInTheWrongOrderAreNamed) {
  EXPECT_EQ(fault_of("0B0,0F0\n"), "schedule x: rank 0 has 0F0 no earlier than 0B0; 0F0 belongs before 0B0");
  EXPECT_EQ(fault_of("0F0,0W0,0I0\n"), "schedule x: rank 0 has 0I0 no earlier than 0W0; 0I0 belongs before 0W0");
  EXPECT_EQ(fault_of("(0F0;0B0)OVERLAP_F_B\n"), "schedule x: rank 0 has 0F0 no earlier than 0B0; 0F0 belongs before 0B0");
}

// A stage on two ranks is a copy as DualPipe has it, or refused: everything else relies on that.
TEST(Schedules, P46_CopiesMirrorEachOther) {
  EXPECT_EQ(fault_of("0F0,1F0,1B0,0B0\n0F1,1F1,1B1,0B1\n"), "");
  for (const auto& [csv, fault] : std::vector<std::pair<const char*, const char*>>{
           {"0F0,1F0,1B0,0B0\n0F1,0B1\n1F1,1B1\n",  // stage 1's second micro-batch on a third rank
            "stage 0 is on ranks 0, 1; a stage may be on one rank, or on two that mirror each other, as 0 and 2"},
           {"0F0,0B0\n0F1,0B1\n0F2,0B2\n",
            "stage 0 is on ranks 0, 1, 2; a stage may be on one rank, or on two that mirror each other, as 0 and 2"},
           {"0F0,0B0\n0F1,1F1,1B1,0B1,1F0,1B0\n",
            "ranks 0 and 1 share stage 0, but have stages 0 and 0, 1; ranks that share a stage share all of theirs"},
           {"0F0,0B0\n0F1,0B1,0F2,0B2\n",
            "stage 0 has 1 of 3 micro-batches on rank 0; each of its two ranks needs half of them"},
           {"0F0,1F0,1B0,0B0\n0F1,1F1,1I1,0I1,0W1,1W1\n",
            "ranks 0 and 1 share their stages, but finish gradients in different orders of stages; B and W must come in the "
            "same order"}})
    EXPECT_EQ(fault_of(csv), std::string("schedule x: ") + fault) << csv;
}

TEST(Schedules, AScheduleThatIsNoneIsRefused) {
  const auto fault = [](const Schedule& s) { return input_error_of([&] { const Assignment whole(s); }); };
  EXPECT_EQ(fault({"x", 1, 1, {}}), "schedule x: it has no ranks; it needs a row of operations for each");
  EXPECT_EQ(fault({"x", 0, 1, {{}}}), "schedule x: it has 0 stages and 1 micro-batches; it needs one of each at least");
  const Cell f{{0, Pass::kForward, 0}, {}}, b{{0, Pass::kBackward, 0}, {}};
  EXPECT_EQ(fault({"x", 1, 1, {{f, b}, {}}}), "schedule x: rank 1 has nothing to do; every rank needs a stage");
  const Cell outside{{1, Pass::kForward, 0}, {}};
  EXPECT_EQ(fault({"x", 1, 1, {{outside, b}}}), "schedule x: rank 0 has 1F0; stages are 0 to 0 and micro-batches 0 to 0");
  const Cell pair{{0, Pass::kBackward, 0}, Operation{0, Pass::kForward, 0}};
  EXPECT_EQ(fault({"x", 1, 1, {{pair}}}),
            "schedule x: rank 0 has (0B0;0F0)OVERLAP_F_B; only an F and a B can run beside each other, F first");
}

// Any operation that is left out, doubled or moved to the front of its row is found, in any schedule.
TEST(Schedules, EveryPlantedFaultIsFound) {
  for (const char* name : {"1f1b", "interleaved", "zb-v", "dualpipe", "dualpipev"}) {
    const Schedule s = schedule_of(name, 2, 4);
    for (std::size_t r = 0; r < 2; ++r) {
      for (std::size_t c = 0; c < s.ranks[r].size(); ++c) {
        Schedule less = s, more = s, early = s;
        less.ranks[r].erase(less.ranks[r].begin() + static_cast<std::ptrdiff_t>(c));
        more.ranks[r].push_back(s.ranks[r][c]);
        std::rotate(early.ranks[r].begin(), early.ranks[r].begin() + static_cast<std::ptrdiff_t>(c),
                    early.ranks[r].begin() + static_cast<std::ptrdiff_t>(c) + 1);
        EXPECT_THROW(const Assignment whole(less), InputError) << name << " " << to_text(s.ranks[r][c]);
        EXPECT_THROW(const Assignment whole(more), InputError) << name << " " << to_text(s.ranks[r][c]);
        if (s.ranks[r][c].operation.pass == Pass::kForward && !s.ranks[r][c].beside) continue;
        EXPECT_THROW(const Assignment whole(early), InputError) << name << " " << to_text(s.ranks[r][c]);
      }
    }
  }
}

}  // namespace pipeline_assignment_test
}  // namespace ref5d::testing
