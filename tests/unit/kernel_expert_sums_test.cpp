// Rows moved to their experts, and summed back with the weights of their choices.
#include <algorithm>
#include <numeric>
#include <random>

#include "common/kernels/expert_rows.h"
#include "tests/support/kernel_repeat.h"
#include "tests/support/moe_kernel_testing.h"

namespace ref5d::testing::moe::of_expert_sums {
namespace {

// The host's sums, moves and products. Weights of none: 1 each.
Values sums_by_place(const Choice& c, const Values& rows, const Values& weights, std::int64_t columns) {
  const Ints place = c.place();
  Values y(at(c.rows, columns));
  for (std::int64_t slot = 0; slot < c.slots(); ++slot) {
    if (place[at(slot, 1)] < 0) continue;
    const double w = weights.empty() ? 1 : weights[at(slot, 1)];
    for (std::int64_t i = 0; i < columns; ++i) y[at(slot / c.k, columns, i)] += w * rows[at(place[at(slot, 1)], columns, i)];
  }
  return y;
}
Values rows_by_order(const Ints& order, int k, const Values& x, const Values& weights, std::int64_t columns) {
  Values y(order.size() * at(columns, 1));
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (order[i] < 0) continue;
    const double w = weights.empty() ? 1 : weights[at(order[i], 1)];
    for (std::int64_t column = 0; column < columns; ++column)
      y[i * at(columns, 1) + at(column, 1)] = w * x[at(order[i] / k, columns, column)];
  }
  return y;
}
Values dot_products(const Choice& c, const Values& dy, const Values& rows, std::int64_t columns) {
  const Ints place = c.place();
  Values d(c.chosen.size());
  for (std::int64_t slot = 0; slot < c.slots(); ++slot) {
    if (place[at(slot, 1)] < 0) continue;
    const double* const a = &dy[at(slot / c.k, columns)];
    d[at(slot, 1)] = std::inner_product(a, a + columns, &rows[at(place[at(slot, 1)], columns)], 0.0);
  }
  return d;
}

// The kernels on host values.
Values taken(const Choice& c, const Values& x, std::int64_t columns, Dtype dtype) {
  const Tensor order = ints(c.order()), y = poisoned({order.dim(0), columns}, dtype);
  take_slots(stream(), y, device_tensor(x, {c.rows, columns}, dtype), order, c.k);
  return values_of(y);
}
// Of weights none: 1 each.
Values summed(const Choice& c, const Values& rows, const Values& weights, std::int64_t columns, Dtype dtype) {
  const auto n = static_cast<std::int64_t>(c.order().size());
  const Tensor y = poisoned({c.rows, columns}, dtype), place = device_ints(c.place(), {c.rows, c.k});
  sum_slots(stream(), y, device_tensor(rows, {n, columns}, dtype), place,
            weights.empty() ? Tensor() : device_tensor(weights, {c.rows, c.k}, accumulator_of(dtype)));
  return values_of(y);
}
Values summed_backward(const Choice& c, const Values& dy, const Values& weights, std::int64_t columns, Dtype dtype) {
  const Tensor order = ints(c.order()), drows = poisoned({order.dim(0), columns}, dtype);
  sum_slots_backward(stream(), drows, device_tensor(dy, {c.rows, columns}, dtype), order,
                     device_tensor(weights, {c.rows, c.k}, accumulator_of(dtype)));
  return values_of(drows);
}
Values weights_backward(const Choice& c, const Values& dy, const Values& rows, std::int64_t columns, Dtype dtype) {
  const auto n = static_cast<std::int64_t>(c.order().size());
  const Tensor dweights = poisoned({c.rows, c.k}, accumulator_of(dtype));
  slot_weights_backward(stream(), dweights, device_tensor(dy, {c.rows, columns}, dtype),
                        device_tensor(rows, {n, columns}, dtype), device_ints(c.place(), {c.rows, c.k}));
  return values_of(dweights);
}

TEST(ExpertRowsKernel, TakeSlotsCopiesTheRowsOfSlots) {
  std::vector<std::int64_t> widths = kAwkwardSizes;
  widths.push_back(300);  // more than a block has threads
  for (const Dtype dtype : kFloatDtypes)
    for (const Choice& c : choices())
      for (const std::int64_t columns : widths) {
        const Values x = rounded(random_values(c.rows * columns, 11), dtype);
        EXPECT_EQ(taken(c, x, columns, dtype), rows_by_order(c.order(), c.k, x, {}, columns)) << dtype_name(dtype) << columns;
      }
}

TEST(ExpertRowsKernel, TakeSlotsWritesZerosForMinusOneAndCopiesBits) {
  const Values special{std::nan(""), -0.0, HUGE_VAL, -std::nan(""), 1e-40, -HUGE_VAL};
  for (const Dtype dtype : kFloatDtypes) {
    const Tensor x = device_tensor(special, {2, 3}, dtype), y = poisoned({2, 3}, dtype);
    take_slots(stream(), y, x, ints({1, 3}), 2);
    EXPECT_EQ(bits_of(y), bits_of(x)) << dtype_name(dtype);
    take_slots(stream(), y, x, ints({-1, -1}), 2);
    EXPECT_EQ(bits_of(y), bits_of(device_tensor(Values(6, 0.0), {2, 3}, dtype))) << dtype_name(dtype);
  }
}

TEST(ExpertRowsKernel, SumSlotsAddsWeightedRowsInEveryDtype) {
  for (const Dtype dtype : kFloatDtypes)
    for (const Choice& c : choices())
      for (const std::int64_t columns : {1, 33, 256, 600}) {  // a block sums 256 at a time
        const Values rows = rounded(random_values(c.slots() * columns, 12), dtype),
                     weights = rounded(random_values(c.slots(), 13), accumulator_of(dtype));
        const Values used(rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(c.order().size() * at(columns, 1)));
        for (const Values& w : {weights, Values()})
          EXPECT_LT(relative_error(summed(c, used, w, columns, dtype), sums_by_place(c, used, w, columns)), tolerance(dtype))
              << dtype_name(dtype) << " " << c.rows << "x" << columns;
      }
}

// bf16 numbers beyond 256 are even: 256 + 1 + 1 stays at 256 if every addition rounds, and so does the second sum if weights
// or products do.
TEST(ExpertRowsKernel, SumSlotsAndItsBackwardCarryBf16InFp32AndRoundOnce) {
  const Choice c{1, 1, 3, {0, 0, 0}};
  EXPECT_EQ(summed(c, {256, 1, 1}, {}, 1, Dtype::kBf16), Values{258});
  EXPECT_EQ(summed(c, {1, 1, 1}, {256.75, 0.25, 0.25}, 1, Dtype::kBf16), Values{258});
  // 257 is no bf16, nor is 385.5, between 384 and 386.
  EXPECT_EQ(summed_backward({1, 1, 1, {0}}, {1.5}, {257}, 1, Dtype::kBf16), Values{386});
}

// In slot order: the large numbers cancel before or after the small one is lost.
TEST(ExpertRowsKernel, SumSlotsAddsInSlotOrder) {
  const auto sum = [](const Ints& place) {
    const Tensor y = poisoned({1, 1}, Dtype::kFp32), rows = device_tensor({1e8, -1e8, 1}, {3, 1}, Dtype::kFp32);
    sum_slots(stream(), y, rows, device_ints(place, {1, 3}), Tensor());
    return values_of(y)[0];
  };
  EXPECT_EQ(sum({0, 1, 2}), 1);
  EXPECT_EQ(sum({0, 2, 1}), 0);
}

TEST(ExpertRowsKernel, TakenAndSummedIsTheIdentityForOneChoice) {
  for (const Dtype dtype : kFloatDtypes) {
    const Choice c = random_choice(129, 1, 7, 14);
    const Tensor x = device_tensor(random_values(129 * 65, 15), {129, 65}, dtype), order = unset({129}), counts = unset({7}),
                 place = unset({129}), rows = poisoned({129, 65}, dtype), back = poisoned({129, 65}, dtype);
    sort_slots(stream(), order, counts, c.on_device());
    invert_order(stream(), place, order);
    take_slots(stream(), rows, x, order, 1);
    sum_slots(stream(), back, rows, place.view({129, 1}), Tensor());
    EXPECT_NE(bits_of(rows), bits_of(x)) << dtype_name(dtype);
    EXPECT_EQ(bits_of(back), bits_of(x)) << dtype_name(dtype);
  }
}

TEST(ExpertRowsKernel, BackwardsMatchTheFormulasInEveryDtype) {
  for (const Dtype dtype : kFloatDtypes)
    for (const Choice& c : choices())
      for (const std::int64_t columns : {1, 33, 300}) {
        const auto n = static_cast<std::int64_t>(c.order().size());
        const Values rows = rounded(random_values(n * columns, 16), dtype),
                     dy = rounded(random_values(c.rows * columns, 17), dtype),
                     weights = rounded(random_values(c.slots(), 18), accumulator_of(dtype));
        EXPECT_LT(relative_error(summed_backward(c, dy, weights, columns, dtype),
                                 rows_by_order(c.order(), c.k, dy, weights, columns)),
                  tolerance(dtype));
        EXPECT_LT(relative_error(weights_backward(c, dy, rows, columns, dtype), dot_products(c, dy, rows, columns)),
                  tolerance(accumulator_of(dtype)))
            << dtype_name(dtype) << " " << c.rows << "x" << columns;
      }
}

TEST(ExpertRowsKernel, BackwardsAreTheGradientsOfTheForwards) {
  constexpr Dtype kFp64 = Dtype::kFp64;
  const Choice c = random_choice(6, 3, 4, 19, 3);
  const std::int64_t columns = 5, n = static_cast<std::int64_t>(c.order().size());
  ASSERT_LT(n, c.slots());
  const Values x = random_values(c.rows * columns, 20), rows = random_values(n * columns, 21),
               weights = random_values(c.slots(), 22), drows = random_values(n * columns, 23),
               dy = random_values(c.rows * columns, 24);
  const auto take = [&](const Values& v) { return taken(c, v, columns, kFp64); };
  EXPECT_LT(relative_error(summed(c, drows, {}, columns, kFp64), finite_difference(take, x, drows)), 1e-7);
  const auto sum_of_rows = [&](const Values& v) { return summed(c, v, weights, columns, kFp64); };
  EXPECT_LT(relative_error(summed_backward(c, dy, weights, columns, kFp64), finite_difference(sum_of_rows, rows, dy)), 1e-7);
  const auto sum_by_weights = [&](const Values& v) { return summed(c, rows, v, columns, kFp64); };
  EXPECT_LT(relative_error(weights_backward(c, dy, rows, columns, kFp64), finite_difference(sum_by_weights, weights, dy)),
            1e-7);
}

// <take x, g> = <x, sum g>, and <sum(w, rows), dy> = <rows, drows> = <w, dweights>. Of small whole numbers, whose products and
// sums every dtype holds, so that these are equalities.
TEST(ExpertRowsKernel, BackwardsAreExactAdjoints) {
  std::mt19937 generator(25);
  std::uniform_int_distribution<int> small(-3, 3);
  const auto whole = [&](std::int64_t n) {
    Values v(at(n, 1));
    for (double& e : v) e = small(generator);
    return v;
  };
  const auto product = [](const Values& a, const Values& b) {
    EXPECT_EQ(a.size(), b.size());
    return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
  };
  for (const Dtype dtype : kFloatDtypes)
    for (const Choice& c : choices())
      for (const std::int64_t columns : {1, 65}) {
        const auto n = static_cast<std::int64_t>(c.order().size());
        const Values x = whole(c.rows * columns), g = whole(n * columns), w = whole(c.slots());
        EXPECT_EQ(product(taken(c, x, columns, dtype), g), product(x, summed(c, g, {}, columns, dtype)));
        const double loss = product(summed(c, g, w, columns, dtype), x);  // rows g, dy x
        EXPECT_EQ(loss, product(g, summed_backward(c, x, w, columns, dtype)));
        EXPECT_EQ(loss, product(w, weights_backward(c, x, g, columns, dtype)));
      }
}

// A row without experts, and rows that come from elsewhere: NaN in them reaches nothing.
TEST(ExpertRowsKernel, P50_RowsThatNoSlotPointsAtAreNotRead) {
  const std::int64_t columns = 300;
  const Values nan(at(columns, 1), std::nan("")), one(at(columns, 1), 1.0), two(at(columns, 1), 2.0);
  const auto matrix = [&](const std::vector<const Values*>& rows, Dtype dtype) {
    Values v;
    for (const Values* r : rows) v.insert(v.end(), r->begin(), r->end());
    return device_tensor(v, {static_cast<std::int64_t>(rows.size()), columns}, dtype);
  };
  const auto rows_are = [&](const Tensor& t, const Values& of_rows) {
    const Values v = values_of(t);
    for (std::size_t i = 0; i < v.size(); ++i) ASSERT_EQ(v[i], of_rows[i / at(columns, 1)]) << i;
  };
  for (const Dtype dtype : kFloatDtypes) {
    const Dtype wide = accumulator_of(dtype);
    // Row 1 has no expert, row 2 one. Of `rows`, the first and the third are nobody's.
    const Tensor x = matrix({&one, &nan, &two}, dtype), rows = matrix({&nan, &one, &nan, &two, &one}, dtype);
    const Tensor order = ints({0, -1, 1, 4, -1}), place = device_ints({1, 3, -1, -1, 4, -1}, {3, 2});
    const double unused = std::nan("");
    const Tensor weights = device_tensor({3, 5, unused, unused, 7, unused}, {3, 2}, wide);
    const Tensor y = poisoned({3, columns}, dtype), moved = poisoned({5, columns}, dtype), dweights = poisoned({3, 2}, wide);
    take_slots(stream(), moved, x, order, 2);
    rows_are(moved, {1, 0, 1, 2, 0});
    sum_slots(stream(), y, rows, place, Tensor());
    rows_are(y, {3, 0, 1});
    sum_slots(stream(), y, rows, place, weights);
    rows_are(y, {13, 0, 7});
    sum_slots_backward(stream(), moved, x, order, weights);
    rows_are(moved, {3, 0, 5, 14, 0});
    slot_weights_backward(stream(), dweights, x, rows, place);
    EXPECT_EQ(bits_of(dweights), bits_of(device_tensor({300, 600, 0, 0, 600, 0}, {3, 2}, wide))) << dtype_name(dtype);
  }
}

// The weight of a dropped choice has no gradient, even where the row's gradient or an expert's output is NaN.
TEST(ExpertRowsKernel, SlotWeightsBackwardIsZeroBesideNan) {
  for (const Dtype dtype : kFloatDtypes) {
    const Dtype wide = accumulator_of(dtype);
    const Tensor dy = poisoned({2, 33}, dtype), rows = poisoned({2, 33}, dtype), dweights = poisoned({2, 2}, wide);
    slot_weights_backward(stream(), dweights, dy, rows, device_ints({-1, 1, 0, -1}, {2, 2}));
    const Values d = values_of(dweights);
    for (const std::size_t dropped : {0, 3}) {
      EXPECT_EQ(d[dropped], 0) << dtype_name(dtype);
      EXPECT_FALSE(std::signbit(d[dropped])) << dtype_name(dtype);
    }
    EXPECT_TRUE(std::isnan(d[1]) && std::isnan(d[2])) << dtype_name(dtype);
  }
}

// Every third of the experts has no token, the first and the last among them; then none has: nothing is NaN or left unset.
TEST(ExpertRowsKernel, P52_ExpertsWithoutTokens) {
  const std::int64_t columns = 33;
  Choice all = random_choice(40, 2, 10, 26, 2), nobody = random_choice(40, 2, 10, 27, 10);
  for (auto& e : all.chosen)
    if (e >= 0 && e % 3 == 0) e = -1;
  for (const Choice& c : {all, nobody}) {
    const Tensor whole = unset({c.slots()}), counts = unset({c.experts}), place = unset({c.slots()});
    sort_slots(stream(), whole, counts, c.on_device());
    const Ints n = ints_of(counts);
    for (std::size_t e = 0; e < n.size(); e += 3) EXPECT_EQ(n[e], 0) << e;
    const Tensor order = whole.rows(0, std::accumulate(n.begin(), n.end(), std::int64_t{0}));
    invert_order(stream(), place, order);
    EXPECT_EQ(ints_of(place), c.place());
    const Values x = random_values(c.rows * columns, 28), w = random_values(c.slots(), 29);
    const Values rows = taken(c, x, columns, Dtype::kFp64);
    for (const Values& result :
         {rows, summed(c, rows, w, columns, Dtype::kFp64), summed_backward(c, x, w, columns, Dtype::kFp64),
          weights_backward(c, x, rows, columns, Dtype::kFp64)})
      EXPECT_TRUE(std::all_of(result.begin(), result.end(), [](double v) { return std::isfinite(v); }));
    if (order.dim(0) == 0) {
      EXPECT_EQ(summed(c, rows, w, columns, Dtype::kFp64), Values(x.size(), 0.0));
      EXPECT_EQ(weights_backward(c, x, rows, columns, Dtype::kFp64), Values(w.size(), 0.0));
    }
  }
}

TEST(ExpertRowsKernel, MovesAndSumsRepeatBitwise) {
  const Choice c = random_choice(151, 3, 9, 35, 1);
  const std::int64_t columns = 300, n = static_cast<std::int64_t>(c.order().size());
  const auto x = [&] { return device_tensor(random_values(c.rows * columns, 36), {c.rows, columns}, Dtype::kFp32); };
  const auto rows = [&] { return device_tensor(random_values(n * columns, 37), {n, columns}, Dtype::kFp32); };
  const auto weights = [&] { return device_tensor(random_values(c.slots(), 38), {c.rows, c.k}, Dtype::kFp32); };
  const auto place = [&] { return device_ints(c.place(), {c.rows, c.k}); };
  expect_repeatable([&] {
    const Tensor y = poisoned({n, columns}, Dtype::kFp32);
    take_slots(stream(), y, x(), ints(c.order()), c.k);
    return y;
  });
  expect_repeatable([&] {
    const Tensor y = poisoned({c.rows, columns}, Dtype::kFp32);
    sum_slots(stream(), y, rows(), place(), weights());
    return y;
  });
  expect_repeatable([&] {
    const Tensor drows = poisoned({n, columns}, Dtype::kFp32);
    sum_slots_backward(stream(), drows, x(), ints(c.order()), weights());
    return drows;
  });
  expect_repeatable([&] {
    const Tensor dweights = poisoned({c.rows, c.k}, Dtype::kFp32);
    slot_weights_backward(stream(), dweights, x(), rows(), place());
    return dweights;
  });
}

TEST(ExpertRowsKernel, NoRowsAndNothingRouted) {
  for (const Dtype dtype : kFloatDtypes) {
    const Dtype wide = accumulator_of(dtype);
    const Tensor no_rows = poisoned({0, 5}, dtype), nothing = ints({}), x = poisoned({3, 5}, dtype);
    const Tensor no_weights = poisoned({0, 2}, wide), no_slots = device_ints({}, {0, 2});
    for (const Tensor& from : {no_rows, x}) take_slots(stream(), no_rows, from, nothing, 2);
    for (const Tensor& w : {no_weights, Tensor()}) sum_slots(stream(), no_rows, no_rows, no_slots, w);
    sum_slots_backward(stream(), no_rows, no_rows, nothing, no_weights);
    slot_weights_backward(stream(), no_weights, no_rows, no_rows, no_slots);
    // Three rows of which no expert has any.
    const Tensor place = device_ints(Ints(6, -1), {3, 2}), weights = poisoned({3, 2}, wide), y = poisoned({3, 5}, dtype);
    for (const Tensor& w : {weights, Tensor()}) {
      sum_slots(stream(), y, no_rows, place, w);
      EXPECT_EQ(values_of(y), Values(15, 0.0));
    }
    sum_slots_backward(stream(), no_rows, x, nothing, weights);
    slot_weights_backward(stream(), weights, x, no_rows, place);
    EXPECT_EQ(values_of(weights), Values(6, 0.0));
    // Rows of no columns.
    const Tensor thin = poisoned({3, 0}, dtype);
    sum_slots(stream(), thin, thin, place, Tensor());
    slot_weights_backward(stream(), weights, thin, thin, device_ints({0, 1, 2, 2, 1, -1}, {3, 2}));
    EXPECT_EQ(values_of(weights), Values(6, 0.0));
  }
}

TEST(ExpertRowsKernel, WrongRowsAndWeightsAreRefused) {
  constexpr Dtype kFp32 = Dtype::kFp32, kBf16 = Dtype::kBf16;
  // Three rows of five columns, two choices each, of which four are routed; weights are fp32.
  const Tensor x = poisoned({3, 5}, kBf16), rows = poisoned({4, 5}, kBf16), order = ints({0, 1, 3, 5}),
               place = device_ints({0, 1, -1, 2, -1, 3}, {3, 2}), weights = poisoned({3, 2}, kFp32);
  EXPECT_NO_THROW(take_slots(stream(), rows, x, order, 2));
  EXPECT_NO_THROW(sum_slots(stream(), x, rows, place, weights));
  EXPECT_NO_THROW(sum_slots_backward(stream(), rows, x, order, weights));
  EXPECT_NO_THROW(slot_weights_backward(stream(), weights, x, rows, place));
  for (const int k : {0, -1}) EXPECT_THROW(take_slots(stream(), rows, x, order, k), std::logic_error);
  // Neither three rows nor four.
  for (const Tensor& wrong : {poisoned({5, 5}, kBf16), poisoned({4, 5}, kFp32), poisoned({4, 4}, kBf16), poisoned({4}, kBf16),
                              poisoned({5, 9}, kBf16).columns(0, 5).rows(0, 4), unset({4, 5}), Tensor()}) {
    EXPECT_THROW(take_slots(stream(), wrong, x, order, 2), std::logic_error);
    EXPECT_THROW(sum_slots_backward(stream(), wrong, x, order, weights), std::logic_error);
    EXPECT_THROW(sum_slots(stream(), wrong, rows, place, weights), std::logic_error);
    EXPECT_THROW(sum_slots_backward(stream(), rows, wrong, order, weights), std::logic_error);
    EXPECT_THROW(slot_weights_backward(stream(), weights, wrong, rows, place), std::logic_error);
  }
  // Any number of rows may be given, but of x's columns and dtype.
  for (const Tensor& wrong : {poisoned({4, 5}, kFp32), poisoned({4, 4}, kBf16), poisoned({4}, kBf16),
                              poisoned({4, 9}, kBf16).columns(0, 5), unset({4, 5}), Tensor()}) {
    EXPECT_THROW(take_slots(stream(), rows, wrong, order, 2), std::logic_error);
    EXPECT_THROW(sum_slots(stream(), x, wrong, place, weights), std::logic_error);
    EXPECT_THROW(slot_weights_backward(stream(), weights, x, wrong, place), std::logic_error);
  }
  for (const Tensor& wrong : {ints({0, 1, 3}), unset({4, 1}), poisoned({4}, kFp32), Tensor()}) {
    EXPECT_THROW(take_slots(stream(), rows, x, wrong, 2), std::logic_error);
    EXPECT_THROW(sum_slots_backward(stream(), rows, x, wrong, weights), std::logic_error);
  }
  for (const Tensor& wrong : {unset({4, 2}), unset({6}), poisoned({3, 2}, kFp32), unset({3, 4}).columns(0, 2), Tensor()}) {
    EXPECT_THROW(sum_slots(stream(), x, rows, wrong, weights), std::logic_error);
    EXPECT_THROW(slot_weights_backward(stream(), weights, x, rows, wrong), std::logic_error);
  }
  for (const Tensor& wrong : {poisoned({4, 2}, kFp32), poisoned({6}, kFp32), poisoned({3, 2}, kBf16),
                              poisoned({3, 2}, Dtype::kFp64), poisoned({3, 4}, kFp32).columns(0, 2)}) {
    EXPECT_THROW(sum_slots(stream(), x, rows, place, wrong), std::logic_error);
    EXPECT_THROW(sum_slots_backward(stream(), rows, x, order, wrong), std::logic_error);
    EXPECT_THROW(slot_weights_backward(stream(), wrong, x, rows, place), std::logic_error);
  }
  const Tensor apart = poisoned({3, 9}, kBf16).columns(0, 5);  // of x's shape
  EXPECT_THROW(take_slots(stream(), rows, apart, order, 2), std::logic_error);
  EXPECT_THROW(sum_slots(stream(), apart, rows, place, weights), std::logic_error);
  EXPECT_THROW(sum_slots_backward(stream(), rows, apart, order, weights), std::logic_error);
  EXPECT_THROW(slot_weights_backward(stream(), weights, apart, rows, place), std::logic_error);
  EXPECT_THROW(sum_slots_backward(stream(), rows, x, order, Tensor()), std::logic_error);
  EXPECT_THROW(slot_weights_backward(stream(), Tensor(), x, rows, place), std::logic_error);
}

}  // namespace
}  // namespace ref5d::testing::moe::of_expert_sums
