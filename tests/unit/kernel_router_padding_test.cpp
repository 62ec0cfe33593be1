// The router's rows of no sequence, and choices of none.
#include <cmath>

#include "common/kernels/router.h"
#include "tests/support/kernel_repeat.h"
#include "tests/support/moe_kernel_testing.h"

namespace ref5d::testing::moe::of_router_padding {
namespace {

// R rows, of which some are padding: what they hold differs between two runs, what is computed of the others may not.
struct PaddedRows {
  ScoreKind kind;
  Dtype dtype;
  Choice choice;
  Ints sequence;
  Values logits, dweights;

  [[nodiscard]] Shape shape() const { return {choice.rows, choice.experts}; }
  [[nodiscard]] std::int64_t sequences() const { return 3; }
  [[nodiscard]] Tensor scores() const { return scores_of(device_tensor(logits, shape(), dtype), kind); }
  [[nodiscard]] Tensor load() const { return load_of(scores(), choice.on_device(), ints(sequence), sequences(), kind); }
  [[nodiscard]] Balance balance() const {
    Values lengths(at(sequences(), 1));
    for (const std::int32_t d : sequence)
      if (d >= 0) ++lengths[at(d, 1)];
    return balance_of(load(), lengths, choice.k, 0.3, 0.7, dtype);
  }
  [[nodiscard]] Tensor gradient(bool with_losses) const {
    const Tensor dw = device_tensor(dweights, {choice.rows, choice.k}, dtype);
    RouterGradient g = main_gradient(scores(), choice.on_device(), dw, kind, true);
    g.scale = 2.5;
    if (!with_losses) return dlogits_of(g);
    g.logits = device_tensor(logits, shape(), dtype);
    g.z_scale = 0.01;
    g.balance_gradient = balance().gradient;
    g.sequence = ints(sequence);
    return dlogits_of(g);
  }
};
PaddedRows padded_rows(std::int64_t rows, std::int64_t experts, ScoreKind kind, Dtype dtype) {
  const Choice c = distinct_choice(rows, 4, experts, 20);
  return {kind, dtype, c, random_ints(rows, -1, 3, 21), random_values(rows * experts, 22, 2), random_values(rows * 4, 23)};
}
// Only the rows of a sequence.
PaddedRows without_padding(const PaddedRows& p) {
  PaddedRows q{p.kind, p.dtype, {0, p.choice.experts, p.choice.k, {}}, {}, {}, {}};
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

TEST(RouterPadding, IsInNoLoadAndNoLoss) {
  for_padded_rows([](const PaddedRows& p) {
    const PaddedRows bare = without_padding(p), other = with_other_padding(p);
    ASSERT_LT(bare.choice.rows, p.choice.rows);
    EXPECT_EQ(bits_of(p.load()), bits_of(other.load()));
    const double loss = p.balance().loss;
    EXPECT_EQ(loss, other.balance().loss);
    const Values load = values_of(p.load()), expected = values_of(bare.load());
    EXPECT_LT(relative_error(load, expected), p.choice.rows < 64 ? 1e-300 : 1e-15);
    for (std::size_t i = 0; i < load.size(); ++i) EXPECT_TRUE(!is_count(i, p.choice.experts) || load[i] == expected[i]) << i;
    EXPECT_NEAR(loss / bare.balance().loss, 1, p.choice.rows < 64 ? 0 : 1e-14);
    EXPECT_GT(loss, 0);
    const auto z = [](const PaddedRows& q) { return z_of(device_tensor(q.logits, q.shape(), q.dtype), q.sequence); };
    EXPECT_EQ(z(p), z(other));
    EXPECT_NEAR(z(p) / z(bare), 1, 1e-14);
  });
}

TEST(RouterPadding, ChangesNoOtherRowsGradient) {
  for_padded_rows([](const PaddedRows& p) {
    const Values others = rows_of(p.gradient(true), p.sequence, false);
    EXPECT_EQ(others, rows_of(with_other_padding(p).gradient(true), p.sequence, false));
    EXPECT_NE(others, rows_of(p.gradient(false), p.sequence, false)) << "losses have a gradient to get";
    const PaddedRows bare = without_padding(p);  // counts are whole numbers, so the balance's gradient is the same
    EXPECT_EQ(others, values_of(bare.gradient(true)));
  });
}

TEST(RouterPadding, HasTheGradientThatThereIsWithoutLosses) {
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
  EXPECT_EQ(p.balance().loss, 0);
  EXPECT_EQ(bits_of(p.gradient(true)), bits_of(p.gradient(false)));
}

// The probabilities of a row are in the load whether or not its choices are.
TEST(RouterLoad, ChoicesOfNoneAreNotCounted) {
  for_padded_rows([](PaddedRows p) {
    const Values all = values_of(p.load());
    p.choice = distinct_choice(p.choice.rows, 4, p.choice.experts, 20, 4);
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

TEST(RouterPadding, RepeatsBitwise) {
  for (const ScoreKind kind : kKinds) {
    const PaddedRows p = padded_rows(100, 40, kind, Dtype::kFp32);
    expect_repeatable([&] { return p.load(); });
    expect_repeatable([&] { return p.gradient(true); });
  }
}

}  // namespace
}  // namespace ref5d::testing::moe::of_router_padding
