// Slots sorted by expert, their places, and what an expert's capacity drops.
#include "common/kernels/expert_rows.h"
#include "tests/support/kernel_repeat.h"
#include "tests/support/moe_kernel_testing.h"

namespace ref5d::testing::moe::of_expert_rows {
namespace {

Ints kept_of(const Choice& c, std::int64_t capacity) {
  const Tensor kept = unset({c.rows, c.k});
  drop_beyond_capacity(stream(), kept, c.on_device(), ints(c.whole_order()), capacity);
  return ints_of(kept);
}
// Every expert takes its first slots, one slot after the other.
Ints kept_by_counting(const Choice& c, std::int64_t capacity) {
  Ints kept = c.chosen, taken_by(at(c.experts, 1));
  for (auto& e : kept)
    if (e >= 0 && taken_by[at(e, 1)]++ >= capacity) e = -1;
  return kept;
}

TEST(ExpertRowsKernel, TheExampleOfTheHeader) {
  const Choice c{3, 4, 2, {2, 0, 0, 3, 2, 1}};
  const Tensor order = unset({6}), counts = unset({4}), place = unset({6});
  sort_slots(stream(), order, counts, c.on_device());
  EXPECT_EQ(ints_of(order), (Ints{1, 2, 5, 0, 4, 3}));
  EXPECT_EQ(ints_of(counts), (Ints{2, 1, 2, 1}));
  invert_order(stream(), place, order);
  EXPECT_EQ(ints_of(place), (Ints{3, 0, 1, 5, 4, 2}));
  EXPECT_EQ(c.order(), ints_of(order));
  EXPECT_EQ(c.place(), ints_of(place)) << "the reference of the other tests";
}

// One pass of the sort and two, several blocks of slots and of experts; experts without slots, slots of none.
TEST(ExpertRowsKernel, SortSlotsIsAStableSortAndCounts) {
  std::vector<Choice> all = choices();
  for (const std::int64_t experts : {3, 255, 256, 512})
    for (const int none_of_ten : {0, 4}) all.push_back(random_choice(700, 3, experts, 7, none_of_ten));
  all.push_back(random_choice(300, 2, 64, 8, 0, 17, 64));   // all to expert 17
  all.push_back(random_choice(300, 2, 64, 9, 2, 1, 2));     // to every other one
  all.push_back(random_choice(20, 8, 512, 10, 0, 511, 1));  // all to the last one
  for (const Choice& c : all) {
    const Tensor order = unset({c.slots()}), counts = unset({c.experts});
    sort_slots(stream(), order, counts, c.on_device());
    EXPECT_EQ(ints_of(order), c.whole_order()) << c.rows << " rows, " << c.experts << " experts";
    EXPECT_EQ(ints_of(counts), c.counts()) << c.rows << " rows, " << c.experts << " experts";
  }
}

TEST(ExpertRowsKernel, InvertOrderIsTheInverseAndMinusOneForTheAbsent) {
  for (const Choice& c : choices()) {
    const Tensor order = ints(c.order()), place = unset({c.slots()});
    invert_order(stream(), place, order);
    EXPECT_EQ(ints_of(place), c.place());
  }
  const Tensor place = unset({7});
  invert_order(stream(), place, ints({5, -1, 0, -1, 6}));
  EXPECT_EQ(ints_of(place), (Ints{2, -1, -1, -1, -1, 0, 4}));
  invert_order(stream(), place, ints({}));
  EXPECT_EQ(ints_of(place), Ints(7, -1));
}

// Tokens 0 to 5 choose expert 0, which takes four: by their position in the micro-batch, 0 to 3. (If two ranks with half of
// the tokens each dropped for themselves, it would have 0, 1, 4 and 5.)
TEST(DropBeyondCapacityKernel, P53_TheFirstSlotsOfTheWholeMicroBatchAreKept) {
  const Choice c{8, 2, 1, {0, 0, 0, 0, 0, 0, 1, 1}};
  EXPECT_EQ(kept_of(c, 4), (Ints{0, 0, 0, 0, -1, -1, 1, 1}));
}

TEST(DropBeyondCapacityKernel, MatchesCountingSlotBySlot) {
  std::vector<Choice> all = choices();
  all.push_back(random_choice(400, 2, 8, 30));
  all.push_back(random_choice(400, 2, 8, 31, 3));
  all.push_back(random_choice(700, 2, 300, 32, 1));
  all.push_back(random_choice(500, 2, 64, 33, 0, 17, 64));  // all to one
  for (const Choice& c : all)
    for (const std::int64_t capacity : {1, 2, 3, 7, 50, 64, 99})
      EXPECT_EQ(kept_of(c, capacity), kept_by_counting(c, capacity)) << c.rows << " rows, capacity " << capacity;
}

TEST(DropBeyondCapacityKernel, ACapacityOfNothingDropsAllAndOneOfEverythingNone) {
  for (const Choice& c : choices()) {
    EXPECT_EQ(kept_of(c, 0), Ints(c.chosen.size(), -1));
    for (const std::int64_t capacity : {c.slots(), c.slots() + 1, std::int64_t{1} << 40})
      EXPECT_EQ(kept_of(c, capacity), c.chosen);
  }
  // Experts that differ within a row have at most one slot a row.
  const Choice c{3, 4, 2, {2, 0, 0, 2, 2, 0}};
  EXPECT_EQ(kept_of(c, 3), c.chosen);
  EXPECT_EQ(kept_of(c, 2), (Ints{2, 0, 0, 2, -1, -1}));
}

// What is kept is a choice again, which sorts into the same order less the dropped.
TEST(DropBeyondCapacityKernel, TheKeptAreSortedAgain) {
  Choice c = random_choice(200, 2, 5, 34);
  c.chosen = kept_of(c, 30);
  const Tensor order = unset({400}), counts = unset({5});
  sort_slots(stream(), order, counts, c.on_device());
  EXPECT_EQ(ints_of(counts), Ints(5, 30));
  EXPECT_EQ(ints_of(order), c.whole_order());
}

TEST(ExpertRowsKernel, RepeatsBitwise) {
  const Choice c = random_choice(151, 3, 9, 35, 1);
  for (const bool order_or_counts : {true, false})
    expect_repeatable([&] {
      const Tensor order = unset({c.slots()}), counts = unset({c.experts});
      sort_slots(stream(), order, counts, c.on_device());
      return order_or_counts ? order : counts;
    });
  expect_repeatable([&] {
    const Tensor inverse = unset({c.slots()});
    invert_order(stream(), inverse, ints(c.order()));
    return inverse;
  });
  expect_repeatable([&] {
    const Tensor kept = unset({c.rows, c.k});
    drop_beyond_capacity(stream(), kept, c.on_device(), ints(c.whole_order()), 20);
    return kept;
  });
}

TEST(ExpertRowsKernel, NoSlots) {
  const Tensor nothing = ints({}), no_slots = device_ints({}, {0, 2}), counts = unset({4});
  sort_slots(stream(), nothing, counts, no_slots);
  EXPECT_EQ(ints_of(counts), Ints(4, 0));
  invert_order(stream(), nothing, nothing);
  drop_beyond_capacity(stream(), no_slots, no_slots, nothing, 4);
}

TEST(ExpertRowsKernel, WrongSlotsAreRefused) {
  const Tensor chosen = device_ints({0, 1, 1, 0, -1, 1}, {3, 2}), order = unset({6}), counts = unset({2}), kept = unset({3, 2}),
               place = unset({6}), floats = poisoned({6}, Dtype::kFp32), wide = unset({3, 4});
  EXPECT_NO_THROW(sort_slots(stream(), order, counts, chosen));
  EXPECT_NO_THROW(drop_beyond_capacity(stream(), kept, chosen, order, 1));
  EXPECT_NO_THROW(invert_order(stream(), place, order));
  for (const Tensor& wrong : {unset({6}), unset({3, 2, 1}), floats.view({3, 2}), wide.columns(0, 2), Tensor()}) {
    EXPECT_THROW(sort_slots(stream(), order, counts, wrong), std::logic_error);
    EXPECT_THROW(drop_beyond_capacity(stream(), kept, wrong, order, 1), std::logic_error);
    EXPECT_THROW(drop_beyond_capacity(stream(), wrong, chosen, order, 1), std::logic_error);
  }
  for (const Tensor& wrong : {unset({5}), unset({3, 2}), floats, Tensor()}) {
    EXPECT_THROW(sort_slots(stream(), wrong, counts, chosen), std::logic_error);
    EXPECT_THROW(drop_beyond_capacity(stream(), kept, chosen, wrong, 1), std::logic_error);
  }
  for (const Tensor& wrong : {unset({3, 2}), floats, Tensor()}) {
    EXPECT_THROW(sort_slots(stream(), order, wrong, chosen), std::logic_error);
    EXPECT_THROW(invert_order(stream(), wrong, order), std::logic_error);
    EXPECT_THROW(invert_order(stream(), place, wrong), std::logic_error);
  }
  EXPECT_THROW(drop_beyond_capacity(stream(), kept, chosen, order, -1), std::logic_error);
  EXPECT_THROW(drop_beyond_capacity(stream(), chosen, chosen, order, 1), std::logic_error);
}

}  // namespace
}  // namespace ref5d::testing::moe::of_expert_rows
