// The small kernels around a mixture of experts: padding, the correction bias, choices by owner, and the router's rows of no
// sequence.
#include <algorithm>
#include <map>
#include <numeric>
#include <random>

#include "common/kernels/choice_owners.h"
#include "common/kernels/correction_bias.h"
#include "common/kernels/expert_padding.h"
#include "common/kernels/expert_rows.h"
#include "common/kernels/router.h"
#include "tests/support/kernel_repeat.h"

namespace ref5d::of_moe_parts {
namespace {

using namespace ref5d::testing;
using Values = std::vector<double>;

constexpr Dtype kWide[] = {Dtype::kFp64, Dtype::kFp32};
constexpr ScoreKind kKinds[] = {ScoreKind::kSoftmax, ScoreKind::kSigmoid};

Ints ints_of(const Tensor& t) {
  const Values v = values_of(t);
  return {v.begin(), v.end()};
}
// For a kernel to overwrite.
Tensor unset(Shape shape) {
  const auto n = static_cast<std::size_t>(product(shape));
  return device_ints(Ints(n, 77), std::move(shape));
}
std::size_t at(std::int64_t row, std::int64_t columns, std::int64_t column = 0) {
  return static_cast<std::size_t>(row * columns + column);
}
// Whole numbers low .. limit-1.
Ints random_ints(std::int64_t n, std::int32_t low, std::int32_t limit, unsigned seed) {
  std::mt19937 generator(seed);
  Ints v(at(n, 1));
  for (std::int32_t& x : v) x = low + static_cast<std::int32_t>(generator() % static_cast<unsigned>(limit - low));
  return v;
}
Values doubles(const Ints& v) { return {v.begin(), v.end()}; }

// Choices of different experts for each row, of which so many of ten are none.
struct Choice {
  std::int64_t rows, k, experts;
  Ints chosen;
  [[nodiscard]] Tensor on_device() const { return device_ints(chosen, {rows, k}); }
};
Choice random_choice(std::int64_t rows, std::int64_t k, std::int64_t experts, unsigned seed, unsigned none_of_ten = 0) {
  Choice c{rows, k, experts, {}};
  Ints all(at(experts, 1));
  std::iota(all.begin(), all.end(), 0);
  std::mt19937 generator(seed);
  for (std::int64_t r = 0; r < rows; ++r) {
    std::shuffle(all.begin(), all.end(), generator);
    for (std::int64_t j = 0; j < k; ++j) c.chosen.push_back(generator() % 10 < none_of_ten ? -1 : all[at(j, 1)]);
  }
  return c;
}

struct Sorted {
  Tensor order, counts;
};
Sorted sorted(const Tensor& chosen, std::int64_t experts) {
  const Sorted s{unset({chosen.numel()}), unset({experts})};
  sort_slots(stream(), s.order, s.counts, chosen);
  return s;
}

// Padding.

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
  return {random_choice(37, 2, 5, 1),     random_choice(9, 1, 1, 2),
          random_choice(400, 3, 6, 3, 3), random_choice(20, 4, 40, 4, 1),
          random_choice(8, 2, 100, 5),    random_choice(6, 3, 4, 6, 10),
          random_choice(0, 2, 3, 7),      {4, 2, 4, {3, 1, -1, -1, 1, 3, 1, -1}}};
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
  take_slots(stream(), rows, device_tensor(x, {c.rows, columns}, dtype), slots, static_cast<int>(c.k));
  sum_slots(stream(), back, rows, place.view({c.rows, c.k}), Tensor());
  drop_beyond_capacity(stream(), kept, c.on_device(), s.order, s.counts, capacity);

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
    const Choice c = random_choice(50, 3, 7, 9);
    const Ints counts = ints_of(sorted(c.on_device(), c.experts).counts);
    const std::int64_t most = *std::max_element(counts.begin(), counts.end());
    expect_round_trip(c, most, dtype);
    const Ints places = ints_of(padded(sorted(c.on_device(), 7).order, ints(counts), most));
    EXPECT_EQ(places.size() - at(std::count(places.begin(), places.end(), -1), 1), c.chosen.size());
  }
}

// The correction bias.

Values moved(const Values& bias, const Values& counts, double speed, Dtype dtype) {
  const auto experts = static_cast<std::int64_t>(bias.size());
  const Tensor b = device_tensor(bias, {experts}, dtype), n = device_tensor(counts, {experts}, Dtype::kFp64);
  move_correction_bias(stream(), b, n, speed);
  EXPECT_EQ(values_of(n), counts) << "the counts changed";
  return values_of(b);
}

TEST(CorrectionBias, MovesBySpeedTowardsTheMean) {
  for (const Dtype dtype : kWide) {
    EXPECT_EQ(moved({0, 0, 0, 0}, {0, 10, 5, 5}, 0.125, dtype), (Values{0.125, -0.125, 0, 0}));
    EXPECT_EQ(moved({1, -1, 2, 0.5}, {4, 6, 5, 5}, 0.125, dtype), (Values{1.125, -1.125, 2, 0.5}));
    EXPECT_EQ(moved({0, 0, 0}, {1, 1, 2}, 0.001, dtype), rounded({0.001, 0.001, -0.001}, dtype)) << "4/3 is no double";
    EXPECT_EQ(moved({0, 0, 0}, {2, 1, 2}, 0.001, dtype), rounded({-0.001, 0.001, -0.001}, dtype));
    EXPECT_EQ(moved({3}, {7}, 0.5, dtype), Values{3}) << "a lone expert has the mean";
    EXPECT_EQ(moved({3, 4}, {0, 0}, 0.5, dtype), (Values{3, 4})) << "no tokens";
    // The bias's own rounding, once.
    const Values b = rounded({0.7, -0.3}, dtype);
    EXPECT_EQ(moved(b, {9, 1}, 0.001, dtype), rounded({b[0] - 0.001, b[1] + 0.001}, dtype));
  }
}

// Also where a sum times a rounded 1/7 is not the count.
TEST(CorrectionBias, EqualCountsKeepEveryBit) {
  const Values bias{0.1, -0.0, 0, 1e-40, -1e30, 1.0 / 3, -7};
  for (const Dtype dtype : kWide)
    for (const double count : {0.0, 1.0, 1000003.0, 0x1p40 + 1}) {
      const Tensor b = device_tensor(bias, {7}, dtype), before = device_tensor(bias, {7}, dtype);
      move_correction_bias(stream(), b, device_tensor(Values(7, count), {7}, Dtype::kFp64), 0.001);
      EXPECT_EQ(bits_of(b), bits_of(before)) << count;
    }
}

// One token more or less than the mean among very many.
TEST(CorrectionBias, OneTokenCountsAmongVeryMany) {
  const double n = 0x1p50;
  for (const Dtype dtype : kWide) {
    EXPECT_EQ(moved({0, 0, 0}, {n, n + 1, n - 1}, 0.5, dtype), (Values{0, -0.5, 0.5}));
    EXPECT_EQ(moved({0, 0, 0}, {n, n, n + 1}, 0.5, dtype), (Values{0.5, 0.5, -0.5}));
  }
}

TEST(CorrectionBias, AddsUpToTheSumOfSigns) {
  for (const Dtype dtype : kWide)
    for (const std::int64_t experts : {1, 2, 3, 8, 33, 600}) {  // the last are several blocks
      const Tensor bias = device_tensor(Values(at(experts, 1), 0.0), {experts}, dtype);
      Values expected(at(experts, 1));
      for (unsigned step = 0; step < 9; ++step) {
        const Ints counts = random_ints(experts, 0, 5, step);  // many have the mean where it is whole
        const auto sum = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
        move_correction_bias(stream(), bias, device_tensor(doubles(counts), {experts}, Dtype::kFp64), 0x1p-10);
        for (std::size_t e = 0; e < counts.size(); ++e) {
          const std::int64_t below = sum - counts[e] * experts;
          expected[e] += 0x1p-10 * double((below > 0) - (below < 0));
        }
      }
      EXPECT_EQ(values_of(bias), expected) << experts;
    }
}

// Choices by owner.

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
  return {owned(random_choice(41, 3, 8, 10), 4, {0, 0, 1, 1, 2, 2, 3, 3}),
          owned(random_choice(300, 4, 12, 11, 3), 5, random_ints(12, 0, 5, 12)),  // neither neighbours nor equally many
          owned(random_choice(17, 2, 6, 13, 2), 1, Ints(6, 0)),
          owned(random_choice(17, 2, 3, 14), 4, {2, 0, 2}),                       // two owners without experts
          owned({5, 2, 4, {0, 1, 1, 0, -1, 1, -1, -1, 0, -1}}, 2, {0, 0, 1, 1}),  // one whose experts nobody chose
          owned(random_choice(6, 2, 4, 15, 10), 2, {0, 1, 0, 1}),                 // nothing chosen
          owned(random_choice(0, 2, 4, 16), 2, {0, 1, 0, 1}),
          owned(random_choice(5600, 3, 16, 17, 1), 3, random_ints(16, 0, 3, 18))};
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
  const Owned o = owned({3, 2, 4, {0, 3, 2, 3, -1, 1}}, 2, {0, 0, 1, 1});
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

// The router's rows of no sequence.

// R rows, of which some are padding: what they hold differs between two runs, what is computed of the others may not.
struct PaddedRows {
  ScoreKind kind;
  Dtype dtype;
  Choice choice;
  Ints sequence;
  Values logits, dweights;

  [[nodiscard]] Shape shape() const { return {choice.rows, choice.experts}; }
  [[nodiscard]] std::int64_t sequences() const { return 3; }
  [[nodiscard]] Tensor scores() const {
    const Tensor s = poisoned(shape(), dtype);
    router_scores(stream(), s, device_tensor(logits, shape(), dtype), kind);
    return s;
  }
  [[nodiscard]] Tensor load() const {
    const Tensor l = poisoned({sequences(), 2, choice.experts}, Dtype::kFp64);
    router_load(stream(), l, scores(), choice.on_device(), ints(sequence), kind);
    return l;
  }
  struct Balance {
    Tensor loss, gradient;
  };
  [[nodiscard]] Balance balance() const {
    Values lengths(at(sequences(), 1));
    for (const std::int32_t d : sequence)
      if (d >= 0) ++lengths[at(d, 1)];
    const Balance b{poisoned({1}, Dtype::kFp64), poisoned({sequences(), choice.experts}, dtype)};
    balance_loss(stream(), b.loss, b.gradient, load(), device_tensor(lengths, {sequences()}, Dtype::kFp64), int(choice.k), 0.3,
                 0.7);
    return b;
  }
  [[nodiscard]] Tensor gradient(bool balanced) const {
    RouterGradient g;
    g.kind = kind;
    g.scale = 2.5;
    g.scores = scores();
    g.chosen = choice.on_device();
    g.dweights = device_tensor(dweights, {choice.rows, choice.k}, dtype);
    g.logits = device_tensor(logits, shape(), dtype);
    g.z_scale = 0.01;
    if (balanced) {
      g.balance_gradient = balance().gradient;
      g.sequence = ints(sequence);
    }
    const Tensor d = poisoned(shape(), dtype);
    router_backward(stream(), d, g);
    return d;
  }
};
PaddedRows padded_rows(std::int64_t rows, std::int64_t experts, ScoreKind kind, Dtype dtype) {
  const Choice c = random_choice(rows, 4, experts, 20);
  return {kind, dtype, c, random_ints(rows, -1, 3, 21), random_values(rows * experts, 22, 2), random_values(rows * 4, 23)};
}
// Only the rows of a sequence.
PaddedRows without_padding(const PaddedRows& p) {
  PaddedRows q{p.kind, p.dtype, {0, p.choice.k, p.choice.experts, {}}, {}, {}, {}};
  const auto append = [](auto& to, const auto& from, std::int64_t row, std::int64_t columns) {
    to.insert(to.end(), from.begin() + row * columns, from.begin() + (row + 1) * columns);
  };
  for (std::int64_t r = 0; r < p.choice.rows; ++r) {
    if (p.sequence[at(r, 1)] < 0) continue;
    ++q.choice.rows;
    append(q.choice.chosen, p.choice.chosen, r, p.choice.k);
    append(q.sequence, p.sequence, r, 1);
    append(q.logits, p.logits, r, p.choice.experts);
    append(q.dweights, p.dweights, r, p.choice.k);
  }
  return q;
}
// Other choices and no numbers in the padding.
PaddedRows with_other_padding(PaddedRows p) {
  for (std::int64_t r = 0; r < p.choice.rows; ++r) {
    if (p.sequence[at(r, 1)] >= 0) continue;
    for (std::int64_t e = 0; e < p.choice.experts; ++e) p.logits[at(r, p.choice.experts, e)] = std::nan("");
    for (std::int64_t j = 0; j < p.choice.k; ++j) p.choice.chosen[at(r, p.choice.k, j)] = static_cast<std::int32_t>(j);
  }
  return p;
}
// The rows that are padding, or those that are not, one after the other.
Values rows_of(const Tensor& t, const Ints& sequence, bool padding) {
  const Values v = values_of(t);
  const auto columns = static_cast<std::int64_t>(v.size() / sequence.size());
  Values rows;
  for (std::int64_t r = 0; r < t.dim(0); ++r)
    if ((sequence[at(r, 1)] < 0) == padding) rows.insert(rows.end(), v.begin() + r * columns, v.begin() + (r + 1) * columns);
  return rows;
}
// Whether element i of a load [D, 2, E] counts choices.
bool is_count(std::size_t i, std::int64_t experts) { return i / at(experts, 1) % 2 == 0; }
template <typename F>
void for_padded_rows(const F& f) {
  for (const ScoreKind kind : kKinds)
    for (const Dtype dtype : kWide)
      for (const std::int64_t rows : {63, 100})  // up to 63 rows are one stretch of the load's sums
        for (const std::int64_t experts : {5, 140}) f(padded_rows(rows, experts, kind, dtype));
}

TEST(RouterPadding, IsInNoLoadAndNoBalanceLoss) {
  for_padded_rows([](const PaddedRows& p) {
    const PaddedRows bare = without_padding(p), other = with_other_padding(p);
    ASSERT_LT(bare.choice.rows, p.choice.rows);
    EXPECT_EQ(bits_of(p.load()), bits_of(other.load()));
    EXPECT_EQ(bits_of(p.balance().loss), bits_of(other.balance().loss));
    const Values load = values_of(p.load()), expected = values_of(bare.load());
    EXPECT_LT(relative_error(load, expected), p.choice.rows < 64 ? 1e-300 : 1e-15);
    for (std::size_t i = 0; i < load.size(); ++i) EXPECT_TRUE(!is_count(i, p.choice.experts) || load[i] == expected[i]) << i;
    EXPECT_NEAR(values_of(p.balance().loss)[0] / values_of(bare.balance().loss)[0], 1, p.choice.rows < 64 ? 0 : 1e-14);
    EXPECT_GT(values_of(p.balance().loss)[0], 0);
  });
}

TEST(RouterPadding, ChangesNoOtherRowsGradient) {
  for_padded_rows([](const PaddedRows& p) {
    const Values others = rows_of(p.gradient(true), p.sequence, false);
    EXPECT_EQ(others, rows_of(with_other_padding(p).gradient(true), p.sequence, false));
    EXPECT_NE(others, rows_of(p.gradient(false), p.sequence, false)) << "there is a balance gradient to get";
    const PaddedRows bare = without_padding(p);  // counts are whole numbers, so the balance's gradient is the same
    EXPECT_EQ(others, values_of(bare.gradient(true)));
  });
}

TEST(RouterPadding, HasTheGradientThatThereIsWithoutABalanceLoss) {
  for_padded_rows([](const PaddedRows& p) {
    const Values own = rows_of(p.gradient(true), p.sequence, true);
    EXPECT_GT(own.size(), 0U);
    EXPECT_EQ(own, rows_of(p.gradient(false), p.sequence, true));
  });
}

TEST(RouterPadding, AloneHasNoLoad) {
  PaddedRows p = padded_rows(70, 5, ScoreKind::kSigmoid, Dtype::kFp32);
  p.sequence = Ints(70, -1);
  EXPECT_EQ(values_of(p.load()), Values(30, 0.0));
  EXPECT_EQ(values_of(p.balance().loss), Values{0});
  EXPECT_EQ(bits_of(p.gradient(true)), bits_of(p.gradient(false)));
}

// The probabilities of a row are in the load whether or not its choices are.
TEST(RouterLoad, ChoicesOfNoneAreNotCounted) {
  for_padded_rows([](PaddedRows p) {
    const Values all = values_of(p.load());
    p.choice = random_choice(p.choice.rows, 4, p.choice.experts, 20, 4);
    Values expected = all;
    for (std::size_t i = 0; i < expected.size(); ++i)
      if (is_count(i, p.choice.experts)) expected[i] = 0;
    for (std::int64_t slot = 0; slot < p.choice.rows * 4; ++slot) {
      const std::int32_t e = p.choice.chosen[at(slot, 1)], d = p.sequence[at(slot / 4, 1)];
      if (e >= 0 && d >= 0) ++expected[at(2 * d, p.choice.experts, e)];
    }
    EXPECT_NE(expected, all);
    EXPECT_EQ(values_of(p.load()), expected);
  });
}

TEST(MoeParts, RepeatBitwise) {
  const Choice c = random_choice(8200, 2, 16, 24, 2);  // two blocks on the CPU
  const Owned o = owned(c, 3, random_ints(16, 0, 3, 25));
  const Ints order = ints_of(o.copies());
  const Sorted s = sorted(c.on_device(), 16);
  const Ints by_expert = ints_of(s.order), counts = ints_of(s.counts);
  expect_repeatable([&] { return padded(ints(by_expert), ints(counts), 800); });
  expect_repeatable([&] { return o.owners_of(); });
  expect_repeatable([&] { return taken(o, ints(order), Dtype::kFp32).chosen; });
  expect_repeatable([&] { return taken(o, ints(order), Dtype::kFp32).weights; });
  expect_repeatable([&] { return in_range(c, 3, 9); });
  const Values numbers = doubles(random_ints(600, 0, 7, 26)), before = random_values(600, 27);
  for (const ScoreKind kind : kKinds) {
    const PaddedRows p = padded_rows(100, 40, kind, Dtype::kFp32);
    expect_repeatable([&] { return p.load(); });
    expect_repeatable([&] { return p.gradient(true); });
  }
  expect_repeatable([&] {
    const Tensor bias = device_tensor(before, {600}, Dtype::kFp32);
    move_correction_bias(stream(), bias, device_tensor(numbers, {600}, Dtype::kFp64), 0.001);
    return bias;
  });
}

TEST(MoeParts, NoRowsAndNoExperts) {
  const Tensor nothing = ints({}), none = device_ints({}, {0, 2}), owner = ints({0, 1, 0});
  EXPECT_EQ(ints_of(padded(nothing, ints({0, 0}), 2)), Ints(4, -1));
  EXPECT_EQ(ints_of(padded(nothing, nothing, 2)), Ints());
  owners_of_choices(stream(), none, none, owner);
  choices_of_range(stream(), none, none, 0, 3);
  for (const Dtype dtype : kWide) {
    const Tensor no_weights = poisoned({0, 2}, dtype), rows = device_ints({0, 1, 2, 0}, {2, 2}),
                 weights = poisoned({2, 2}, dtype);
    take_choices(stream(), none, no_weights, none, no_weights, owner, nothing, 2);
    take_choices(stream(), none, no_weights, rows, weights, owner, nothing, 2);
    move_correction_bias(stream(), poisoned({0}, dtype), poisoned({0}, Dtype::kFp64), 1);
  }
}

template <typename F>
void refused(const F& f) {
  EXPECT_THROW(f(), std::logic_error);
}

TEST(MoeParts, WrongPaddingAndBiasesAreRefused) {
  const Tensor slots = unset({6}), order = ints({0, 1, 2, 3}), counts = ints({3, 1}), floats = poisoned({6}, Dtype::kFp32);
  EXPECT_NO_THROW(pad_slots(stream(), slots, order, counts, 3));
  for (const Tensor& wrong : {unset({5}), unset({2, 3}), floats, Tensor()})
    refused([&] { pad_slots(stream(), wrong, order, counts, 3); });
  for (const Tensor& wrong : {unset({2, 2}), floats, Tensor()}) refused([&] { pad_slots(stream(), slots, wrong, counts, 3); });
  for (const Tensor& wrong : {unset({1, 2}), unset({3}), poisoned({2}, Dtype::kFp32), Tensor()})
    refused([&] { pad_slots(stream(), slots, order, wrong, 3); });
  for (const std::int64_t rows : {-3, -1, 0, 2, 4}) refused([&] { pad_slots(stream(), slots, order, counts, rows); });

  const Tensor tokens = poisoned({3}, Dtype::kFp64);
  for (const Dtype dtype : kWide) {
    const Tensor bias = poisoned({3}, dtype);
    EXPECT_NO_THROW(move_correction_bias(stream(), bias, tokens, 1));
    for (const Tensor& wrong :
         {poisoned({3}, Dtype::kFp32), poisoned({1, 3}, Dtype::kFp64), poisoned({2}, Dtype::kFp64), unset({3}), Tensor()})
      refused([&] { move_correction_bias(stream(), bias, wrong, 1); });
    for (const Tensor& wrong :
         {poisoned({3}, Dtype::kBf16), poisoned({3, 1}, dtype), poisoned({4}, dtype), unset({3}), Tensor()})
      refused([&] { move_correction_bias(stream(), wrong, tokens, 1); });
  }
}

TEST(MoeParts, WrongChoicesAndOwnersAreRefused) {
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
}  // namespace ref5d::of_moe_parts
