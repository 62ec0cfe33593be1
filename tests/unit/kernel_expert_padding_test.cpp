// Slots padded to the same number for each expert.
#include <algorithm>

#include "common/kernels/expert_padding.h"
#include "common/kernels/expert_rows.h"
#include "tests/support/kernel_repeat.h"
#include "tests/support/moe_kernel_testing.h"

namespace ref5d::testing::moe::of_expert_padding {
namespace {

Tensor padded(const Tensor& order, const Tensor& counts, std::int64_t rows) {
  const Tensor slots = unset({counts.numel() * rows});
  pad_slots(stream(), slots, order, counts, rows);
  return slots;
}
Ints padded_on_host(const Ints& order, const Ints& counts, std::int64_t rows) {
  Ints slots;
  auto from = order.begin();
  for (const std::int32_t count : counts) {
    Ints of_expert(from, from + count);
    of_expert.resize(at(rows, 1), -1);
    slots.insert(slots.end(), of_expert.begin(), of_expert.end());
    from += count;
  }
  return slots;
}
// Many experts and one, experts without slots, slots of none behind all others, a row without choices, no rows.
std::vector<Choice> padding_choices() {
  return {distinct_choice(37, 2, 5, 1),     distinct_choice(9, 1, 1, 2),           distinct_choice(400, 3, 6, 3, 3),
          distinct_choice(20, 4, 40, 4, 1), distinct_choice(8, 2, 100, 5),         distinct_choice(6, 3, 4, 6, 10),
          distinct_choice(0, 2, 3, 7),      {4, 4, 2, {3, 1, -1, -1, 1, 3, 1, -1}}};
}

TEST(PaddedSlots, AnExample) {
  const Tensor order = ints({4, 2, 0, 5, 1, 3}), counts = ints({3, 0, 1, 1});  // slot 3 is of none
  EXPECT_EQ(ints_of(padded(order, counts, 2)), (Ints{4, 2, -1, -1, 5, -1, 1, -1}));
  EXPECT_EQ(ints_of(padded(order, counts, 1)), (Ints{4, -1, 5, 1}));
  EXPECT_EQ(ints_of(padded(order, counts, 4)), (Ints{4, 2, 0, -1, -1, -1, -1, -1, 5, -1, -1, -1, 1, -1, -1, -1}));
}

TEST(PaddedSlots, AreTheFirstOfEachExpertAndMinusOneBehindThem) {
  for (const Choice& c : padding_choices()) {
    const Sorted s = sorted(c.on_device(), c.experts);
    for (const std::int64_t rows : {0, 1, 2, 7, 60, 257})  // the last is more than a block has threads
      EXPECT_EQ(ints_of(padded(s.order, s.counts, rows)), padded_on_host(ints_of(s.order), ints_of(s.counts), rows))
          << c.rows << " of " << c.experts << ", padded to " << rows;
  }
}

// Rows taken by padded slots and summed back: every row as often as its choices had room, and zeros where nobody is. Of small
// whole numbers, so that this is exact in every dtype.
void expect_round_trip(const Choice& c, std::int64_t capacity, Dtype dtype) {
  const std::int64_t columns = 33, places = c.experts * capacity;
  const Values x = doubles(random_ints(c.rows * columns, 1, 9, 8));
  const Sorted s = sorted(c.on_device(), c.experts);
  const Tensor slots = padded(s.order, s.counts, capacity), place = unset({c.rows * c.k}), kept = unset({c.rows, c.k}),
               rows = poisoned({places, columns}, dtype), back = poisoned({c.rows, columns}, dtype);
  invert_order(stream(), place, slots);
  take_slots(stream(), rows, device_tensor(x, {c.rows, columns}, dtype), slots, c.k);
  sum_slots(stream(), back, rows, place.view({c.rows, c.k}), Tensor());
  drop_beyond_capacity(stream(), kept, c.on_device(), s.order, capacity);

  const Ints of_place = ints_of(slots), of_slot = ints_of(place), still_chosen = ints_of(kept);
  Values expected_rows, expected_back(x.size());
  for (const std::int32_t slot : of_place)
    for (std::int64_t i = 0; i < columns; ++i) expected_rows.push_back(slot < 0 ? 0 : x[at(slot / c.k, columns, i)]);
  EXPECT_EQ(values_of(rows), expected_rows);
  for (std::int64_t slot = 0; slot < c.rows * c.k; ++slot) {
    const std::int32_t e = still_chosen[at(slot, 1)], p = of_slot[at(slot, 1)];
    EXPECT_EQ(p < 0 ? -1 : p / capacity, e) << "slot " << slot << ": in its expert's rows, and dropped only without room";
    for (std::int64_t i = 0; e >= 0 && i < columns; ++i)
      expected_back[at(slot / c.k, columns, i)] += x[at(slot / c.k, columns, i)];
  }
  EXPECT_EQ(values_of(back), expected_back) << c.experts << " experts, capacity " << capacity;
}

TEST(PaddedSlots, RoundTripLosesNothingThatWasKept) {
  for (const Dtype dtype : kFloatDtypes)
    for (const Choice& c : padding_choices())
      for (const std::int64_t capacity : {1, 3, 14}) expect_round_trip(c, capacity, dtype);
  for (const Dtype dtype : kFloatDtypes) {  // room for all
    const Choice c = distinct_choice(50, 3, 7, 9);
    const Ints counts = ints_of(sorted(c.on_device(), c.experts).counts);
    const std::int64_t most = *std::max_element(counts.begin(), counts.end());
    expect_round_trip(c, most, dtype);
    const Ints places = ints_of(padded(sorted(c.on_device(), 7).order, ints(counts), most));
    EXPECT_EQ(places.size() - at(std::count(places.begin(), places.end(), -1), 1), c.chosen.size());
  }
}

TEST(PaddedSlots, RepeatBitwise) {
  const Sorted s = sorted(distinct_choice(8200, 2, 16, 24, 2).on_device(), 16);  // two blocks on the CPU
  const Ints order = ints_of(s.order), counts = ints_of(s.counts);
  expect_repeatable([&] { return padded(ints(order), ints(counts), 800); });
}

TEST(PaddedSlots, OfNoRowsAndNoExperts) {
  const Tensor nothing = ints({});
  EXPECT_EQ(ints_of(padded(nothing, ints({0, 0}), 2)), Ints(4, -1));
  EXPECT_EQ(ints_of(padded(nothing, nothing, 2)), Ints());
}

TEST(PaddedSlots, WrongTensorsAndCapacitiesAreRefused) {
  const Tensor slots = unset({6}), order = ints({0, 1, 2, 3}), counts = ints({3, 1}), floats = poisoned({6}, Dtype::kFp32);
  EXPECT_NO_THROW(pad_slots(stream(), slots, order, counts, 3));
  for (const Tensor& wrong : {unset({5}), unset({2, 3}), floats, Tensor()})
    refused([&] { pad_slots(stream(), wrong, order, counts, 3); });
  for (const Tensor& wrong : {unset({2, 2}), floats, Tensor()}) refused([&] { pad_slots(stream(), slots, wrong, counts, 3); });
  for (const Tensor& wrong : {unset({1, 2}), unset({3}), poisoned({2}, Dtype::kFp32), Tensor()})
    refused([&] { pad_slots(stream(), slots, order, wrong, 3); });
  for (const std::int64_t rows : {-3, -1, 0, 2, 4}) refused([&] { pad_slots(stream(), slots, order, counts, rows); });
}

}  // namespace
}  // namespace ref5d::testing::moe::of_expert_padding
