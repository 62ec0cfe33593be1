// Choices by who has the chosen expert.
#include <algorithm>
#include <map>
#include <numeric>

#include "common/kernels/choice_owners.h"
#include "tests/support/kernel_repeat.h"
#include "tests/support/moe_kernel_testing.h"

namespace ref5d::testing::moe::of_choice_owners {
namespace {

struct Owned {
  Choice choice;
  int owners;
  Ints owner;  // of each expert
  Values weights;

  [[nodiscard]] std::int64_t slots() const { return choice.rows * choice.k; }
  [[nodiscard]] bool has(std::int64_t m, std::int32_t expert) const { return expert >= 0 && owner[at(expert, 1)] == m; }
  [[nodiscard]] Tensor owner_of() const { return ints(owner); }
  [[nodiscard]] Tensor weights_in(Dtype dtype) const { return device_tensor(weights, {choice.rows, choice.k}, dtype); }
  [[nodiscard]] Tensor owners_of() const {
    const Tensor of_rows = unset({choice.rows, owners});
    owners_of_choices(stream(), of_rows, choice.on_device(), owner_of());
    return of_rows;
  }
  // The slots of a copy for each owner that has a choice, by owner.
  [[nodiscard]] Tensor copies() const {
    const Sorted s = sorted(owners_of(), owners);
    const Ints counts = ints_of(s.counts);
    return s.order.rows(0, std::accumulate(counts.begin(), counts.end(), std::int64_t{0}));
  }
};
// Weights that fp32 has exactly, no two of which are equal.
Owned owned(Choice choice, int owners, Ints owner) {
  Owned o{std::move(choice), owners, std::move(owner), {}};
  for (std::int64_t slot = 0; slot < o.slots(); ++slot) o.weights.push_back(double(slot + 1) / 1024);
  return o;
}
std::vector<Owned> owned_choices() {
  return {owned(distinct_choice(41, 3, 8, 10), 4, {0, 0, 1, 1, 2, 2, 3, 3}),
          owned(distinct_choice(300, 4, 12, 11, 3), 5, random_ints(12, 0, 5, 12)),  // neither neighbours nor equally many
          owned(distinct_choice(17, 2, 6, 13, 2), 1, Ints(6, 0)),
          owned(distinct_choice(17, 2, 3, 14), 4, {2, 0, 2}),                     // two owners without experts
          owned({5, 4, 2, {0, 1, 1, 0, -1, 1, -1, -1, 0, -1}}, 2, {0, 0, 1, 1}),  // one whose experts nobody chose
          owned(distinct_choice(6, 2, 4, 15, 10), 2, {0, 1, 0, 1}),               // nothing chosen
          owned(distinct_choice(0, 2, 4, 16), 2, {0, 1, 0, 1}),
          owned(distinct_choice(5600, 3, 16, 17, 1), 3, random_ints(16, 0, 3, 18))};
}
struct Taken {
  Tensor chosen, weights;
};
Taken taken(const Owned& o, const Tensor& order, Dtype dtype) {
  const Taken t{unset({order.numel(), o.choice.k}), poisoned({order.numel(), o.choice.k}, dtype)};
  take_choices(stream(), t.chosen, t.weights, o.choice.on_device(), o.weights_in(dtype), o.owner_of(), order, o.owners);
  return t;
}
Tensor in_range(const Choice& c, std::int64_t begin, std::int64_t end) {
  const Tensor mine = unset({c.rows, c.k});
  choices_of_range(stream(), mine, c.on_device(), begin, end);
  return mine;
}

TEST(ChoiceOwners, AnExample) {
  const Owned o = owned({3, 4, 2, {0, 3, 2, 3, -1, 1}}, 2, {0, 0, 1, 1});
  EXPECT_EQ(ints_of(o.owners_of()), (Ints{0, 1, -1, 1, 0, -1}));
  EXPECT_EQ(ints_of(o.copies()), (Ints{0, 4, 1, 3}));
  const Taken t = taken(o, o.copies(), Dtype::kFp64);
  EXPECT_EQ(ints_of(t.chosen), (Ints{0, -1, -1, 1, -1, 3, 2, 3}));
  const Values& w = o.weights;
  EXPECT_EQ(values_of(t.weights), (Values{w[0], 0, 0, w[5], 0, w[1], w[2], w[3]}));
}

TEST(ChoiceOwners, AreThoseOfAnyOfTheRowsChoices) {
  for (const Owned& o : owned_choices()) {
    Ints expected;
    for (std::int64_t r = 0; r < o.choice.rows; ++r)
      for (std::int32_t m = 0; m < o.owners; ++m) {
        const auto begin = o.choice.chosen.begin() + r * o.choice.k;
        expected.push_back(std::any_of(begin, begin + o.choice.k, [&](auto e) { return o.has(m, e); }) ? m : -1);
      }
    EXPECT_EQ(ints_of(o.owners_of()), expected) << o.choice.rows << " rows, " << o.owners << " owners";
  }
}

// Also by an order that is no sort's: copies may be taken twice, and for owners of none of the row's choices.
TEST(ChoiceOwners, TakenAreTheOwnersChoicesAndTheirWeights) {
  for (const Dtype dtype : kWide)
    for (const Owned& o : owned_choices())
      for (const bool any : {false, true}) {
        const auto copies = static_cast<std::int32_t>(o.choice.rows * o.owners);
        const Ints order = any && copies > 0 ? random_ints(50, 0, copies, 19) : ints_of(o.copies());
        Values chosen, weights;
        for (const std::int32_t slot : order)
          for (std::int64_t j = 0; j < o.choice.k; ++j) {
            const std::size_t from = at(slot / o.owners, o.choice.k, j);
            const bool theirs = o.has(slot % o.owners, o.choice.chosen[from]);
            chosen.push_back(theirs ? o.choice.chosen[from] : -1);
            weights.push_back(theirs ? o.weights[from] : 0);
          }
        const Taken t = taken(o, ints(order), dtype);
        EXPECT_EQ(values_of(t.chosen), chosen);
        EXPECT_EQ(values_of(t.weights), weights);
      }
}

TEST(ChoiceOwners, EveryChoiceIsInExactlyOneCopyWithItsWeight) {
  for (const Dtype dtype : kWide)
    for (const Owned& o : owned_choices()) {
      const Tensor copies = o.copies();
      const Taken t = taken(o, copies, dtype);
      const Ints order = ints_of(copies), chosen = ints_of(t.chosen);
      const Values weights = values_of(t.weights);
      Ints found(at(o.slots(), 1), -1), times(found.size());
      Values found_weights(found.size());
      for (std::int64_t i = 0; i < copies.numel(); ++i) {
        bool any = false;
        for (std::int64_t j = 0; j < o.choice.k; ++j) {
          const std::size_t slot = at(order[at(i, 1)] / o.owners, o.choice.k, j);
          found_weights[slot] += weights[at(i, o.choice.k, j)];
          if (chosen[at(i, o.choice.k, j)] < 0) continue;
          any = true;
          ++times[slot];
          found[slot] = chosen[at(i, o.choice.k, j)];
        }
        EXPECT_TRUE(any) << "copy " << i << " is for nobody";
      }
      EXPECT_EQ(found, o.choice.chosen);
      for (std::size_t slot = 0; slot < found.size(); ++slot) {
        ASSERT_EQ(times[slot], o.choice.chosen[slot] < 0 ? 0 : 1) << slot;
        ASSERT_EQ(found_weights[slot], times[slot] * o.weights[slot]) << slot;
      }
    }
}

TEST(ChoiceOwners, ChoicesOfARangeAreTheOthersMinusOne) {
  for (const Owned& o : owned_choices()) {
    const Choice& c = o.choice;
    const std::int64_t experts = c.experts;
    for (const auto& [begin, end] :
         std::multimap<std::int64_t, std::int64_t>{{0, experts}, {0, 1}, {0, 0}, {1, experts}, {1, 2}, {experts, experts}}) {
      Ints expected = c.chosen;
      for (std::int32_t& e : expected)
        if (e < begin || e >= end) e = -1;
      EXPECT_EQ(ints_of(in_range(c, begin, end)), expected) << begin << " to " << end << " of " << experts;
    }
  }
}

TEST(ChoiceOwners, RepeatBitwise) {
  const Choice c = distinct_choice(8200, 2, 16, 24, 2);  // two blocks on the CPU
  const Owned o = owned(c, 3, random_ints(16, 0, 3, 25));
  const Ints order = ints_of(o.copies());
  expect_repeatable([&] { return o.owners_of(); });
  expect_repeatable([&] { return taken(o, ints(order), Dtype::kFp32).chosen; });
  expect_repeatable([&] { return taken(o, ints(order), Dtype::kFp32).weights; });
  expect_repeatable([&] { return in_range(c, 3, 9); });
}

TEST(ChoiceOwners, OfNoRows) {
  const Tensor nothing = ints({}), none = device_ints({}, {0, 2}), owner = ints({0, 1, 0});
  owners_of_choices(stream(), none, none, owner);
  choices_of_range(stream(), none, none, 0, 3);
  for (const Dtype dtype : kWide) {
    const Tensor no_weights = poisoned({0, 2}, dtype), rows = device_ints({0, 1, 2, 0}, {2, 2}),
                 weights = poisoned({2, 2}, dtype);
    take_choices(stream(), none, no_weights, none, no_weights, owner, nothing, 2);
    take_choices(stream(), none, no_weights, rows, weights, owner, nothing, 2);
  }
}

TEST(ChoiceOwners, WrongChoicesAndOwnersAreRefused) {
  // Three rows of two choices of three experts, two owners, four copies.
  const Tensor chosen = device_ints({0, 1, 2, -1, 1, 0}, {3, 2}), owner = ints({0, 1, 1}), of_rows = unset({3, 2}),
               order = ints({0, 1, 3, 5}), theirs = unset({4, 2}), weights = poisoned({3, 2}, Dtype::kFp32),
               taken_weights = poisoned({4, 2}, Dtype::kFp32);
  const auto take = [&](const Tensor& c, const Tensor& w, const Tensor& from, const Tensor& from_weights) {
    take_choices(stream(), c, w, from, from_weights, owner, order, 2);
  };
  EXPECT_NO_THROW(owners_of_choices(stream(), of_rows, chosen, owner));
  EXPECT_NO_THROW(take(theirs, taken_weights, chosen, weights));
  EXPECT_NO_THROW(choices_of_range(stream(), of_rows, chosen, 0, 2));
  // Neither of three rows nor of four.
  for (const Tensor& wrong : {unset({5, 2}), unset({6}), unset({3, 2, 1}), poisoned({3, 2}, Dtype::kFp32),
                              unset({5, 4}).columns(0, 2).rows(0, 3), Tensor()}) {
    refused([&] { owners_of_choices(stream(), wrong, chosen, owner); });
    refused([&] { owners_of_choices(stream(), of_rows, wrong, owner); });
    refused([&] { take(wrong, taken_weights, chosen, weights); });
    refused([&] { take(theirs, taken_weights, wrong, weights); });
    refused([&] { choices_of_range(stream(), wrong, chosen, 0, 2); });
    refused([&] { choices_of_range(stream(), of_rows, wrong, 0, 2); });
  }
  for (const Tensor& wrong :
       {poisoned({5, 2}, Dtype::kFp32), poisoned({6}, Dtype::kFp32), unset({4, 2}), poisoned({4, 2}, Dtype::kFp64),
        poisoned({4, 2}, Dtype::kBf16), poisoned({4, 4}, Dtype::kFp32).columns(0, 2), Tensor()})
    refused([&] { take(theirs, wrong, chosen, weights); });
  for (const Tensor& wrong : {poisoned({5, 2}, Dtype::kFp32), poisoned({6}, Dtype::kFp32), unset({3, 2}),
                              poisoned({3, 2}, Dtype::kFp64), poisoned({3, 4}, Dtype::kFp32).columns(0, 2), Tensor()})
    refused([&] { take(theirs, taken_weights, chosen, wrong); });
  const Tensor bf16 = poisoned({3, 2}, Dtype::kBf16);
  refused([&] { take(theirs, poisoned({4, 2}, Dtype::kBf16), chosen, bf16); });
  for (const Tensor& wrong : {unset({1, 3}), poisoned({3}, Dtype::kFp32), Tensor()}) {
    refused([&] { owners_of_choices(stream(), of_rows, chosen, wrong); });
    refused([&] { take_choices(stream(), theirs, taken_weights, chosen, weights, wrong, order, 2); });
  }
  for (const Tensor& wrong : {unset({2, 2}), unset({5}), poisoned({4}, Dtype::kFp32), Tensor()})
    refused([&] { take_choices(stream(), theirs, taken_weights, chosen, weights, owner, wrong, 2); });
  for (const int owners : {0, -1})
    refused([&] { take_choices(stream(), theirs, taken_weights, chosen, weights, owner, order, owners); });
}

}  // namespace
}  // namespace ref5d::testing::moe::of_choice_owners
