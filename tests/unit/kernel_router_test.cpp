#include <algorithm>
#include <numeric>
#include <random>
#include <set>

#include "common/kernels/router.h"
#include "tests/support/kernel_repeat.h"

namespace ref5d::of_router {
namespace {

using namespace ref5d::testing;
using Values = std::vector<double>;

constexpr Dtype kDtypes[] = {Dtype::kFp64, Dtype::kFp32};
constexpr ScoreKind kKinds[] = {ScoreKind::kSoftmax, ScoreKind::kSigmoid};
const double kNan = std::nan("");

std::int64_t size_of(const Values& v) { return static_cast<std::int64_t>(v.size()); }
Tensor fp64(const Values& v) { return device_tensor(v, {size_of(v)}, Dtype::kFp64); }
Ints ints_of(const Tensor& t) {
  const Values v = values_of(t);
  return {v.begin(), v.end()};
}
// Whole numbers below `limit`.
Ints random_ints(std::int64_t n, std::int32_t limit, unsigned seed) {
  std::mt19937 generator(seed);
  Ints v(static_cast<std::size_t>(n));
  for (std::int32_t& x : v) x = static_cast<std::int32_t>(generator() % static_cast<unsigned>(limit));
  return v;
}
// Choices of k different experts of each row.
Ints random_choices(std::int64_t rows, std::int64_t experts, std::int64_t k, unsigned seed) {
  Ints all(static_cast<std::size_t>(experts)), chosen;
  std::iota(all.begin(), all.end(), 0);
  std::mt19937 generator(seed);
  for (std::int64_t r = 0; r < rows; ++r) {
    std::shuffle(all.begin(), all.end(), generator);
    chosen.insert(chosen.end(), all.begin(), all.begin() + k);
  }
  return chosen;
}

Tensor scores_of(const Tensor& logits, ScoreKind kind) {
  Tensor scores = poisoned(logits.shape(), logits.dtype());
  router_scores(stream(), scores, logits, kind);
  return scores;
}
Tensor choice_of(const Tensor& scores, const Tensor& bias, const ChoiceRule& rule) {
  Tensor chosen = device_ints(Ints(static_cast<std::size_t>(scores.dim(0) * rule.top_k), -7), {scores.dim(0), rule.top_k});
  choose_experts(stream(), chosen, scores, bias, rule);
  return chosen;
}
Tensor weights_of(const Tensor& scores, const Tensor& chosen, bool renormalise, double scale) {
  Tensor weights = poisoned(chosen.shape(), scores.dtype());
  routing_weights(stream(), weights, scores, chosen, renormalise, scale);
  return weights;
}
Tensor load_of(const Tensor& scores, const Tensor& chosen, const Tensor& sequence, std::int64_t sequences, ScoreKind kind) {
  Tensor load = poisoned({sequences, 2, scores.dim(1)}, Dtype::kFp64);
  router_load(stream(), load, scores, chosen, sequence, kind);
  return load;
}
struct Balance {
  double loss;
  Tensor gradient;
};
Balance balance_of(const Tensor& load, const Values& lengths, int top_k, double coefficient = 1, double scale = 1,
                   Dtype dtype = Dtype::kFp64) {
  const Tensor loss = poisoned({1}, Dtype::kFp64), gradient = poisoned({load.dim(0), load.dim(2)}, dtype);
  balance_loss(stream(), loss, gradient, load, fp64(lengths), top_k, coefficient, scale);
  return {values_of(loss)[0], gradient};
}
double z_of(const Tensor& logits) {
  const Tensor z = poisoned({1}, Dtype::kFp64);
  router_z_sum(stream(), z, logits);
  return values_of(z)[0];
}
Tensor dlogits_of(const RouterGradient& g) {
  Tensor dlogits = poisoned(g.scores.shape(), g.scores.dtype());
  router_backward(stream(), dlogits, g);
  return dlogits;
}

double reference_lse(const double* x, std::int64_t experts) {
  const double greatest = *std::max_element(x, x + experts);
  double sum = 0;
  for (std::int64_t e = 0; e < experts; ++e) sum += std::exp(x[e] - greatest);
  return std::log(sum) + greatest;
}
Values reference_scores(const Values& logits, std::int64_t experts, ScoreKind kind) {
  Values s;
  for (std::int64_t row = 0; row < size_of(logits); row += experts) {
    const double* x = &logits[static_cast<std::size_t>(row)];
    const double lse = reference_lse(x, experts);
    for (std::int64_t e = 0; e < experts; ++e)
      s.push_back(kind == ScoreKind::kSoftmax ? std::exp(x[e] - lse) : 1 / (1 + std::exp(-x[e])));
  }
  return s;
}

TEST(RouterKernel, ScoresMatchTheFormula) {
  for (const Dtype dtype : kDtypes)
    for (const ScoreKind kind : kKinds)
      for (const std::int64_t experts : {1, 2, 3, 8, 31, 32, 33, 65, 129, 512}) {
        const Values logits = rounded(random_values(5 * experts, 1, 3), dtype);
        const Tensor x = device_tensor(logits, {5, experts}, dtype);
        EXPECT_LT(relative_error(values_of(scores_of(x, kind)), reference_scores(logits, experts, kind)),
                  dtype == Dtype::kFp64 ? 2e-15 : 5e-7)
            << experts;
        EXPECT_EQ(values_of(x), logits) << "the input changed";
      }
}

TEST(RouterKernel, LargeLogitsNeitherOverflowNorLeaveTheUnitInterval) {
  for (const Dtype dtype : kDtypes) {
    const Values softmax = values_of(scores_of(device_tensor({1e4, 1e4, -1e4, 3e38, -3e38, 0}, {2, 3}, dtype), kKinds[0]));
    EXPECT_EQ(softmax, Values({0.5, 0.5, 0, 1, 0, 0}));
    const Values sigmoid = values_of(scores_of(device_tensor({1e4, -1e4, 0, 3e38, -3e38, 0}, {2, 3}, dtype), kKinds[1]));
    EXPECT_EQ(sigmoid, Values({1, 0, 0.5, 1, 0, 0.5}));
  }
}

TEST(RouterKernel, ANanLogitShowsInItsRowAlone) {
  const Tensor x = device_tensor({1, kNan, 2, 0, 0, 0}, {2, 3}, Dtype::kFp32);
  const Values s = values_of(scores_of(x, ScoreKind::kSoftmax));
  for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(std::isnan(s[i]), i < 3) << i;
  const Values of_each = values_of(scores_of(x, ScoreKind::kSigmoid));
  for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(std::isnan(of_each[i]), i == 1) << i;
}

bool comes_first(double a, double b) { return a > b || (std::isnan(b) && !std::isnan(a)); }

// By stable sorts: of the groups, and of the experts in those that are left.
Ints naive_choice(const Values& value, const ChoiceRule& rule) {
  const auto size = static_cast<std::ptrdiff_t>(value.size()) / rule.groups;
  Values of_group;
  for (std::ptrdiff_t g = 0; g < rule.groups; ++g) {
    Values members(value.begin() + g * size, value.begin() + (g + 1) * size);
    std::stable_sort(members.begin(), members.end(), comes_first);
    of_group.push_back(size == 1 ? members[0] : members[0] + members[1]);
  }
  Ints groups(of_group.size()), experts;
  std::iota(groups.begin(), groups.end(), 0);
  std::stable_sort(groups.begin(), groups.end(), [&](auto a, auto b) { return comes_first(of_group[a], of_group[b]); });
  groups.resize(static_cast<std::size_t>(rule.top_groups));
  for (std::size_t e = 0; e < value.size(); ++e)
    if (std::count(groups.begin(), groups.end(), static_cast<std::ptrdiff_t>(e) / size) > 0) experts.push_back(std::int32_t(e));
  std::stable_sort(experts.begin(), experts.end(), [&](auto a, auto b) { return comes_first(value[a], value[b]); });
  experts.resize(static_cast<std::size_t>(rule.top_k));
  return experts;
}

// Eighths, so that the sums are exact in every dtype and many values are equal; with some that are no numbers.
Values eighths(std::int64_t n, unsigned seed, bool numbers_alone) {
  Values v;
  for (const std::int32_t x : random_ints(n, 32, seed))
    v.push_back(!numbers_alone && x % 7 == 0 ? kNan : !numbers_alone && x % 5 == 0 ? -HUGE_VAL : x / 8.0);
  return v;
}

void expect_naive_choice(std::int64_t experts, const ChoiceRule& rule, unsigned seed) {
  const std::int64_t rows = 6;
  const bool biased = seed % 2 == 0;
  const Values s = eighths(rows * experts, seed, seed % 3 == 0), b = eighths(experts, seed + 1, true);
  Ints expected;
  for (std::int64_t r = 0; r < rows; ++r) {
    Values value(s.begin() + r * experts, s.begin() + (r + 1) * experts);
    for (std::size_t e = 0; biased && e < value.size(); ++e) value[e] += b[e];
    const Ints row = naive_choice(value, rule);
    EXPECT_EQ(std::set<std::int32_t>(row.begin(), row.end()).size(), row.size());
    expected.insert(expected.end(), row.begin(), row.end());
  }
  for (const Dtype dtype : kDtypes) {
    const Tensor bias = biased ? device_tensor(b, {experts}, dtype) : Tensor();
    EXPECT_EQ(ints_of(choice_of(device_tensor(s, {rows, experts}, dtype), bias, rule)), expected)
        << experts << " experts, " << rule.top_k << " in " << rule.top_groups << " of " << rule.groups << ", seed " << seed;
  }
}

TEST(RouterKernel, ChoiceIsThatOfStableSortsForEveryNumberOfGroups) {
  unsigned seed = 0;
  for (const int experts : {1, 2, 3, 8, 12, 31, 32, 33, 64, 130, 512})
    for (int groups = 1; groups <= experts; ++groups) {
      if (experts % groups != 0) continue;
      for (const int top_groups : std::set<int>{1, (groups + 1) / 2, groups}) {
        const int most = std::min(16, top_groups * (experts / groups));
        for (const int k : std::set<int>{1, (most + 1) / 2, most})
          expect_naive_choice(experts, {k, groups, top_groups}, ++seed);
      }
    }
}

TEST(RouterKernel, OfEqualExpertsAndGroupsTheLowerIndexComesFirst) {
  const Tensor equal = device_tensor(Values(8, 0.25), {1, 8}, Dtype::kFp32);
  EXPECT_EQ(ints_of(choice_of(equal, {}, {4, 1, 1})), Ints({0, 1, 2, 3}));
  EXPECT_EQ(ints_of(choice_of(equal, {}, {4, 4, 2})), Ints({0, 1, 2, 3}));
  const Tensor two = device_tensor({0, -0.0, 1, 0, 1, -0.0, 2, 0}, {1, 8}, Dtype::kFp32);  // zeros are equal
  EXPECT_EQ(ints_of(choice_of(two, {}, {8, 1, 1})), Ints({6, 2, 4, 0, 1, 3, 5, 7}));
  EXPECT_EQ(ints_of(choice_of(two, {}, {4, 4, 2})), Ints({6, 2, 3, 7}));
}

// A row that has nothing to choose by still has k different experts, of the groups that it may use.
TEST(RouterKernel, RowsOfNanAndMinusInfinityHaveDistinctChoicesInTheirGroups) {
  const double no = -HUGE_VAL;
  const Values rows{kNan, kNan, kNan, kNan, kNan, kNan,  //
                    no,   no,   no,   no,   no,   no,    //
                    kNan, no,   no,   kNan, 5,    kNan,  //
                    no,   no,   kNan, 1,    no,   no};
  for (const Dtype dtype : kDtypes) {
    const Tensor s = device_tensor(rows, {4, 6}, dtype);
    EXPECT_EQ(ints_of(choice_of(s, {}, {4, 1, 1})), Ints({0, 1, 2, 3, 0, 1, 2, 3, 4, 1, 2, 0, 3, 0, 1, 4}));
    // Sums of groups: NaN, NaN, NaN; -inf, -inf, -inf; NaN, NaN, NaN; -inf, NaN, -inf.
    EXPECT_EQ(ints_of(choice_of(s, {}, {2, 3, 1})), Ints({0, 1, 0, 1, 1, 0, 0, 1}));
    EXPECT_EQ(ints_of(choice_of(s, {}, {4, 3, 2})), Ints({0, 1, 2, 3, 0, 1, 2, 3, 1, 2, 0, 3, 0, 1, 4, 5}));
  }
}

TEST(RouterKernel, BiasMovesTheChoiceAlone) {
  const Tensor s = device_tensor({0.5, 0.25, 0.125, 0.125}, {1, 4}, Dtype::kFp64), bias = fp64({0, 0, 1, 0});
  const Tensor with = choice_of(s, bias, {2, 1, 1});
  EXPECT_EQ(ints_of(choice_of(s, {}, {2, 1, 1})), Ints({0, 1}));
  EXPECT_EQ(ints_of(with), Ints({2, 0}));
  EXPECT_EQ(values_of(weights_of(s, with, false, 1)), Values({0.125, 0.5}));
  EXPECT_EQ(values_of(weights_of(s, with, true, 1)), Values({0.2, 0.8}));
  // A group of the other half is chosen by its bias, too.
  EXPECT_EQ(ints_of(choice_of(s, bias, {2, 2, 1})), Ints({2, 3}));
}

TEST(RouterKernel, WeightsAreTheChosenScoresOrTheirShares) {
  const std::int64_t rows = 300, experts = 40;
  for (const Dtype dtype : kDtypes)
    for (const std::int64_t k : {1, 2, 6, 16})
      for (const double scale : {1.0, 2.5})
        for (const bool renormalise : {false, true}) {
          const Values s = rounded(reference_scores(random_values(rows * experts, 3), experts, ScoreKind::kSigmoid), dtype);
          const Ints c = random_choices(rows, experts, k, 4);
          Values expected;
          for (std::int64_t i = 0; i < rows * k; ++i) {
            const auto score = [&](std::int64_t slot) { return s[static_cast<std::size_t>(slot / k * experts + c[slot])]; };
            double sum = 0;
            for (std::int64_t j = 0; j < k; ++j) sum += score(i / k * k + j);
            expected.push_back(score(i) * scale / (renormalise ? sum : 1));
          }
          const Tensor w = weights_of(device_tensor(s, {rows, experts}, dtype), device_ints(c, {rows, k}), renormalise, scale);
          EXPECT_LT(relative_error(values_of(w), expected), dtype == Dtype::kFp64 ? 1e-15 : 3e-7) << k;
        }
}

// What the gradient of the main loss alone reads.
RouterGradient main_gradient(const Tensor& scores, const Tensor& chosen, const Tensor& dweights, ScoreKind kind,
                             bool renormalise) {
  RouterGradient g;
  g.kind = kind;
  g.renormalise = renormalise;
  g.scores = scores;
  g.chosen = chosen;
  g.dweights = dweights;
  return g;
}

TEST(RouterKernel, P51_ALoneRenormalisedChoiceHasWeightOneAndNoGradient) {
  const std::int64_t rows = 400, experts = 9;
  for (const Dtype dtype : kDtypes)
    for (const ScoreKind kind : kKinds) {
      const Tensor s = scores_of(device_tensor(random_values(rows * experts, 5, 2), {rows, experts}, dtype), kind);
      const Tensor chosen = choice_of(s, {}, {}), dw = device_tensor(random_values(rows, 6), {rows, 1}, dtype);
      EXPECT_EQ(values_of(weights_of(s, chosen, true, 1)), Values(rows, 1.0));
      EXPECT_EQ(values_of(dlogits_of(main_gradient(s, chosen, dw, kind, true))), Values(rows * experts, 0.0));
      for (const double w : values_of(weights_of(s, chosen, false, 1))) EXPECT_LT(w, 1);
      const Values d = values_of(dlogits_of(main_gradient(s, chosen, dw, kind, false)));
      const Ints c = ints_of(chosen);
      for (std::int64_t r = 0; r < rows; ++r) EXPECT_NE(d[static_cast<std::size_t>(r * experts + c[r])], 0) << r;
    }
}

// A loss of all three parts. The choice is held fixed, and so is how often an expert was chosen.
struct FixedChoice {
  std::int64_t rows, experts, k;
  ScoreKind kind;
  bool renormalise;
  double scale;
  Ints chosen, sequence;
  Values lengths, dweights;
  double coefficient = 0.3, balance_scale = 0.7, z_scale = 0.05;

  [[nodiscard]] Tensor choice() const { return device_ints(chosen, {rows, k}); }
  [[nodiscard]] Tensor logits(const Values& x, Dtype dtype) const { return device_tensor(x, {rows, experts}, dtype); }
  [[nodiscard]] Balance balance(const Tensor& scores) const {
    const Tensor load = load_of(scores, choice(), ints(sequence), size_of(lengths), kind);
    return balance_of(load, lengths, static_cast<int>(k), coefficient, balance_scale, scores.dtype());
  }
  [[nodiscard]] double loss(const Values& x) const {
    const Tensor at = logits(x, Dtype::kFp64), scores = scores_of(at, kind);
    const Values w = values_of(weights_of(scores, choice(), renormalise, scale));
    return std::inner_product(w.begin(), w.end(), dweights.begin(), 0.0) + balance_scale * balance(scores).loss +
           z_scale * z_of(at);
  }
  [[nodiscard]] Tensor gradient(const Values& x, Dtype dtype) const {
    const Tensor at = logits(x, dtype), scores = scores_of(at, kind);
    RouterGradient g = main_gradient(scores, choice(), device_tensor(dweights, {rows, k}, dtype), kind, renormalise);
    g.scale = scale;
    g.logits = at;
    g.balance_gradient = balance(scores).gradient;
    g.sequence = ints(sequence);
    g.z_scale = z_scale;
    return dlogits_of(g);
  }
};

FixedChoice fixed_choice(std::int64_t rows, std::int64_t experts, std::int64_t k, std::int64_t sequences, ScoreKind kind,
                         bool renormalise, double scale) {
  FixedChoice f{rows, experts, k, kind, renormalise, scale, random_choices(rows, experts, k, 7), {}, {}, {}};
  f.lengths.resize(static_cast<std::size_t>(sequences));
  for (std::int64_t r = 0; r < rows; ++r) {  // neither neighbours nor equally long
    f.sequence.push_back(static_cast<std::int32_t>((r + r / 3) % sequences));
    ++f.lengths[static_cast<std::size_t>(f.sequence.back())];
  }
  f.dweights = random_values(rows * k, 8);
  f.dweights[0] = 0;  // of a choice that was dropped
  return f;
}

void expect_gradient_of_loss(const FixedChoice& f) {
  const Values x = random_values(f.rows * f.experts, 9);
  const Values expected = finite_difference([&](const Values& at) { return Values{f.loss(at)}; }, x, {1.0});
  EXPECT_LT(relative_error(values_of(f.gradient(x, Dtype::kFp64)), expected), 1e-7)
      << f.experts << " experts, k " << f.k << ", " << f.lengths.size() << " sequences, renormalised " << f.renormalise
      << ", scale " << f.scale << ", sigmoid " << (f.kind == ScoreKind::kSigmoid);
}

TEST(RouterKernel, BackwardIsTheGradientOfAllThreeLosses) {
  for (const ScoreKind kind : kKinds)
    for (const bool renormalise : {true, false}) {
      for (const double scale : {1.0, 2.5})
        for (const std::int64_t k : {1, 2, 4})
          for (const std::int64_t sequences : {1, 3})
            expect_gradient_of_loss(fixed_choice(5, 6, k, sequences, kind, renormalise, scale));
      expect_gradient_of_loss(fixed_choice(2, 70, 4, 2, kind, renormalise, 2.5));  // more experts than a warp has threads
    }
}

TEST(RouterKernel, BackwardInFp32IsNearThatInFp64) {
  for (const ScoreKind kind : kKinds)
    for (const std::int64_t experts : {4, 33, 300}) {
      const FixedChoice f = fixed_choice(17, experts, 4, 3, kind, true, 2.5);
      const Values x = rounded(random_values(f.rows * experts, 10), Dtype::kFp32);
      EXPECT_LT(relative_error(values_of(f.gradient(x, Dtype::kFp32)), values_of(f.gradient(x, Dtype::kFp64))), 2e-6)
          << experts;
    }
}

TEST(RouterKernel, LoadCountsChoicesAndSumsProbabilitiesBySequence) {
  for (const Dtype dtype : kDtypes)
    for (const ScoreKind kind : kKinds)
      for (const std::int64_t rows : {1, 63, 97, 350})  // the last are several stretches
        for (const std::int64_t sequences : {1, 3})
          for (const std::int64_t experts : {2, 33, 130}) {
            const std::int64_t k = 2;
            const Values s = rounded(reference_scores(random_values(rows * experts, 11), experts, kind), dtype);
            const Ints c = random_choices(rows, experts, k, 12), q = random_ints(rows, std::int32_t(sequences), 13);
            Values counts(static_cast<std::size_t>(sequences * experts)), sums(counts.size()), load_counts, load_sums;
            for (std::int64_t r = 0; r < rows; ++r) {
              const auto row = s.begin() + r * experts;
              const double total = kind == ScoreKind::kSigmoid ? std::accumulate(row, row + experts, 0.0) : 1;
              const auto at = static_cast<std::size_t>(q[r] * experts);
              for (std::int64_t e = 0; e < experts; ++e) sums[at + e] += row[e] / total;
              for (std::int64_t j = 0; j < k; ++j) ++counts[at + c[r * k + j]];
            }
            const Tensor scores = device_tensor(s, {rows, experts}, dtype);
            const Values load = values_of(load_of(scores, device_ints(c, {rows, k}), ints(q), sequences, kind));
            for (std::int64_t i = 0; i < size_of(load); ++i)
              (i / experts % 2 == 0 ? load_counts : load_sums).push_back(load[i]);
            EXPECT_EQ(load_counts, counts);
            EXPECT_LT(relative_error(load_sums, sums), 1e-14) << rows << " " << experts;
          }
}

TEST(RouterKernel, BalanceLossMatchesTheFormula) {
  const std::int64_t sequences = 4, experts = 70;
  const int k = 3;
  const Values lengths{5, 1, 0, 900};  // one is empty
  const Ints numbers = random_ints(sequences * 2 * experts, 100, 14);
  Values load(numbers.begin(), numbers.end()), gradient;
  double loss = 0;
  for (std::size_t d = 0; d < 4; ++d)
    for (std::size_t e = 0; e < 70; ++e) {
      const double f = load[d * 140 + e] / (k * lengths[d]), factor = 0.25 * experts / sequences;
      if (lengths[d] > 0) loss += factor * f * load[d * 140 + 70 + e] / lengths[d];
      gradient.push_back(lengths[d] > 0 ? 3 * factor * f / lengths[d] : 0);
    }
  for (const Dtype dtype : kDtypes) {
    const Balance b = balance_of(device_tensor(load, {sequences, 2, experts}, Dtype::kFp64), lengths, k, 0.25, 3, dtype);
    EXPECT_NEAR(b.loss / loss, 1, 1e-14);
    EXPECT_LT(relative_error(values_of(b.gradient), gradient), dtype == Dtype::kFp64 ? 1e-15 : 1e-7);
  }
}

TEST(RouterKernel, T8_BalanceLossDependsOnWhatItIsCountedOver) {
  const Tensor p =
      device_tensor({.75, .25, .75, .25, .75, .25, .75, .25, .25, .75, .25, .75, .25, .75, .25, .75}, {8, 2}, Dtype::kFp64);
  const auto loss = [&](std::int64_t begin, std::int64_t end, const Ints& sequence, const Values& lengths) {
    const Tensor rows = p.rows(begin, end), chosen = choice_of(rows, {}, {});
    return balance_of(load_of(rows, chosen, ints(sequence), size_of(lengths), ScoreKind::kSoftmax), lengths, 1).loss;
  };
  EXPECT_EQ(loss(0, 8, Ints(8, 0), {8}), 1.0);
  EXPECT_EQ((loss(0, 4, Ints(4, 0), {4}) + loss(4, 8, Ints(4, 0), {4})) / 2, 1.5);
  EXPECT_EQ(loss(0, 8, {0, 0, 0, 0, 1, 1, 1, 1}, {4, 4}), 1.5);
}

TEST(RouterKernel, BalanceLossOfAnEvenLoadIsItsCoefficient) {
  const std::int64_t rows = 12;
  const Tensor s = scores_of(device_tensor(random_values(rows * 6, 15, 2), {rows, 6}, Dtype::kFp64), ScoreKind::kSigmoid);
  Ints chosen;
  for (std::int32_t i = 0; i < 24; ++i) chosen.push_back(i % 6);
  const Tensor load = load_of(s, device_ints(chosen, {rows, 2}), ints(Ints(12, 0)), 1, ScoreKind::kSigmoid);
  EXPECT_NEAR(balance_of(load, {12}, 2, 0.01).loss, 0.01, 1e-16);
}

TEST(RouterKernel, ZSumMatchesTheFormulaAlsoOfLargeLogits) {
  for (const Dtype dtype : kDtypes)
    for (const std::int64_t experts : {1, 6, 33, 300})
      for (const double deviation : {1.0, 1e4}) {
        const Values x = rounded(random_values(301 * experts, 16, deviation), dtype);
        double expected = 0;
        for (std::int64_t r = 0; r < 301; ++r) expected += std::pow(reference_lse(&x[r * experts], experts), 2);
        EXPECT_NEAR(z_of(device_tensor(x, {301, experts}, dtype)) / expected, 1, dtype == Dtype::kFp64 ? 1e-14 : 1e-6)
            << experts;
      }
}

TEST(RouterKernel, RepeatsBitwise) {
  const std::int64_t rows = 700, experts = 40;
  const Values x = random_values(rows * experts, 17);
  for (const ScoreKind kind : kKinds) {
    const FixedChoice f = fixed_choice(rows, experts, 4, 3, kind, true, 1);
    const auto scores = [&] { return scores_of(f.logits(x, Dtype::kFp32), kind); };
    expect_repeatable(scores);
    expect_repeatable([&] { return choice_of(scores(), {}, {4, 5, 2}); });
    expect_repeatable([&] { return weights_of(scores(), f.choice(), true, 1); });
    expect_repeatable([&] { return load_of(scores(), f.choice(), ints(f.sequence), 3, kind); });
    expect_repeatable([&] { return fp64({f.balance(scores()).loss, z_of(f.logits(x, Dtype::kFp32))}); });
    expect_repeatable([&] { return f.gradient(x, Dtype::kFp32); });
  }
}

TEST(RouterKernel, NoRowsHaveNoLoad) {
  for (const ScoreKind kind : kKinds) {
    const Tensor s = scores_of(poisoned({0, 5}, Dtype::kFp32), kind), chosen = choice_of(s, {}, {2, 1, 1});
    EXPECT_EQ(values_of(weights_of(s, chosen, true, 1)), Values());
    const Tensor load = load_of(s, chosen, ints({}), 2, kind);
    EXPECT_EQ(values_of(load), Values(20, 0.0));
    const Balance b = balance_of(load, {0, 0}, 2);
    EXPECT_EQ(b.loss, 0);
    EXPECT_EQ(values_of(b.gradient), Values(10, 0.0));
    EXPECT_EQ(balance_of(load_of(s, chosen, ints({}), 0, kind), {}, 2).loss, 0);
    EXPECT_EQ(z_of(s), 0);
    EXPECT_EQ(values_of(dlogits_of(main_gradient(s, chosen, poisoned({0, 2}, Dtype::kFp32), kind, true))), Values());
  }
}

TEST(RouterKernel, ImpossibleChoicesAreRefused) {
  const Tensor s = poisoned({2, 6}, Dtype::kFp32);
  for (const ChoiceRule& rule : std::vector<ChoiceRule>{
           {7, 1, 1}, {0, 1, 1}, {1, 4, 1}, {1, 0, 0}, {1, -1, 1}, {1, 3, 4}, {1, 3, 0}, {3, 3, 1}, {5, 3, 2}}) {
    const Tensor chosen = device_ints(Ints(2 * rule.top_k), {2, rule.top_k});
    EXPECT_THROW(choose_experts(stream(), chosen, s, {}, rule), std::logic_error) << rule.top_k << " " << rule.groups;
  }
  EXPECT_NO_THROW(choose_experts(stream(), device_ints(Ints(8), {2, 4}), s, {}, {4, 3, 2}));
  EXPECT_THROW(choose_experts(stream(), device_ints(Ints(8), {2, 4}), s, {}, {3, 3, 2}), std::logic_error);
  EXPECT_THROW(choose_experts(stream(), device_ints(Ints(2), {2, 1}), s, poisoned({5}, Dtype::kFp32), {}), std::logic_error);
  EXPECT_THROW(choose_experts(stream(), device_ints(Ints(2), {2, 1}), s, poisoned({6}, Dtype::kFp64), {}), std::logic_error);
}

TEST(RouterKernel, WrongShapesAndDtypesAreRefused) {
  const Tensor s = poisoned({2, 6}, Dtype::kFp32), bf16 = poisoned({2, 6}, Dtype::kBf16),
               other = poisoned({2, 6}, Dtype::kFp64), part = poisoned({2, 7}, Dtype::kFp32).columns(0, 6),
               w = poisoned({2, 3}, Dtype::kFp32), one = fp64({0});
  const Tensor chosen = device_ints({0, 1, 2, 3, 4, 5}, {2, 3}), q = ints({0, 0}), load = poisoned({1, 2, 6}, Dtype::kFp64);
  const auto refused = [](const auto& f) { EXPECT_THROW(f(), std::logic_error); };
  for (const Tensor& wrong : {bf16, other, part, chosen}) {
    refused([&] { router_scores(stream(), s, wrong, ScoreKind::kSoftmax); });
    refused([&] { router_scores(stream(), wrong, s, ScoreKind::kSigmoid); });
    refused([&] { routing_weights(stream(), wrong, s, chosen, true, 1); });
    refused([&] { router_load(stream(), load, s, wrong.dtype() == Dtype::kInt32 ? w : wrong, q, ScoreKind::kSoftmax); });
    refused([&] { router_backward(stream(), wrong, main_gradient(s, chosen, w, ScoreKind::kSoftmax, true)); });
    refused([&] { balance_loss(stream(), one, wrong, load, one, 1, 1, 1); });
  }
  for (const Tensor& wrong : {bf16, part, chosen}) refused([&] { router_z_sum(stream(), one, wrong); });
  refused([&] { router_z_sum(stream(), poisoned({1}, Dtype::kFp32), s); });
  refused([&] { router_load(stream(), load, s, chosen, ints({0}), ScoreKind::kSoftmax); });
  refused([&] { router_load(stream(), s, s, chosen, q, ScoreKind::kSoftmax); });
  refused([&] { balance_loss(stream(), one, poisoned({1, 6}, Dtype::kFp32), load, fp64({1, 1}), 1, 1, 1); });
  RouterGradient g = main_gradient(s, chosen, w, ScoreKind::kSoftmax, true);
  EXPECT_NO_THROW(router_backward(stream(), poisoned({2, 6}, Dtype::kFp32), g));
  g.z_scale = 1;  // without logits
  refused([&] { router_backward(stream(), poisoned({2, 6}, Dtype::kFp32), g); });
  g.logits = s;
  EXPECT_NO_THROW(router_backward(stream(), poisoned({2, 6}, Dtype::kFp32), g));
  g.balance_gradient = poisoned({1, 6}, Dtype::kFp32);  // without sequences
  refused([&] { router_backward(stream(), poisoned({2, 6}, Dtype::kFp32), g); });
}

}  // namespace
}  // namespace ref5d::of_router
