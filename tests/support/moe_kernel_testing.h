// What the tests of the kernels of a mixture of experts share: choices of experts, and the router's kernels on tensors.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "common/kernels/expert_rows.h"
#include "common/kernels/router.h"
#include "tests/support/kernel_testing.h"

namespace ref5d::testing::moe {

using Values = std::vector<double>;

// What scores and weights may be of.
inline constexpr Dtype kWide[] = {Dtype::kFp64, Dtype::kFp32};
inline constexpr ScoreKind kKinds[] = {ScoreKind::kSoftmax, ScoreKind::kSigmoid};

inline std::int64_t size_of(const Values& v) { return static_cast<std::int64_t>(v.size()); }
inline std::size_t at(std::int64_t row, std::int64_t columns, std::int64_t column = 0) {
  return static_cast<std::size_t>(row * columns + column);
}
inline Tensor fp64(const Values& v) { return device_tensor(v, {size_of(v)}, Dtype::kFp64); }
inline Ints ints_of(const Tensor& t) {
  const Values v = values_of(t);
  return {v.begin(), v.end()};
}
inline Values doubles(const Ints& v) { return {v.begin(), v.end()}; }
// For a kernel to overwrite.
inline Tensor unset(Shape shape) {
  const auto n = static_cast<std::size_t>(product(shape));
  return device_ints(Ints(n, 77), std::move(shape));
}
// Whole numbers low .. limit-1.
inline Ints random_ints(std::int64_t n, std::int32_t low, std::int32_t limit, unsigned seed) {
  std::mt19937 generator(seed);
  Ints v(at(n, 1));
  for (std::int32_t& x : v) x = low + static_cast<std::int32_t>(generator() % static_cast<unsigned>(limit - low));
  return v;
}

// A choice of experts, and on the host what the kernels should make of it. `order` leaves out the slots of none.
struct Choice {
  std::int64_t rows, experts;
  int k;
  Ints chosen;

  [[nodiscard]] std::int64_t slots() const { return rows * k; }
  [[nodiscard]] Tensor on_device() const { return device_ints(chosen, {rows, k}); }
  [[nodiscard]] Ints whole_order() const {
    Ints order(chosen.size());
    std::iota(order.begin(), order.end(), 0);
    const auto key = [&](std::int32_t slot) { return static_cast<std::uint32_t>(chosen[at(slot, 1)]); };  // none is greatest
    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return key(a) < key(b); });
    return order;
  }
  [[nodiscard]] Ints counts() const {
    Ints counts(at(experts, 1));
    for (const std::int32_t e : chosen)
      if (e >= 0) ++counts[at(e, 1)];
    return counts;
  }
  [[nodiscard]] Ints order() const {
    Ints order = whole_order();
    order.resize(order.size() - at(std::count(chosen.begin(), chosen.end(), -1), 1));
    return order;
  }
  [[nodiscard]] Ints place() const {
    Ints place(chosen.size(), -1);
    const Ints by_expert = order();
    for (std::size_t i = 0; i < by_expert.size(); ++i) place[at(by_expert[i], 1)] = static_cast<std::int32_t>(i);
    return place;
  }
};

// Of every ten choices so many are none; the others are any of the experts first, first + step, ..., one row's also the same.
inline Choice random_choice(std::int64_t rows, int k, std::int64_t experts, unsigned seed, int none_of_ten = 0,
                            std::int64_t first = 0, std::int64_t step = 1) {
  std::mt19937 generator(seed);
  std::uniform_int_distribution<std::int64_t> any(0, (experts - 1 - first) / step), ten(0, 9);
  Choice c{rows, experts, k, Ints(at(rows, k))};
  for (auto& e : c.chosen) e = static_cast<std::int32_t>(ten(generator) < none_of_ten ? -1 : first + step * any(generator));
  return c;
}
// Of different experts for each row, as a router chooses.
inline Choice distinct_choice(std::int64_t rows, int k, std::int64_t experts, unsigned seed, unsigned none_of_ten = 0) {
  Choice c{rows, experts, k, {}};
  Ints all(at(experts, 1));
  std::iota(all.begin(), all.end(), 0);
  std::mt19937 generator(seed);
  for (std::int64_t r = 0; r < rows; ++r) {
    std::shuffle(all.begin(), all.end(), generator);
    for (std::int64_t j = 0; j < k; ++j) c.chosen.push_back(generator() % 10 < none_of_ten ? -1 : all[at(j, 1)]);
  }
  return c;
}
// Of no rows, of few and of many; one row in three has no choice at all.
inline std::vector<Choice> choices() {
  std::vector<Choice> all{random_choice(0, 2, 4, 1),     random_choice(1, 1, 1, 2),       random_choice(1, 3, 8, 3),
                          random_choice(33, 2, 5, 4, 3), random_choice(13, 16, 40, 5, 1), random_choice(7, 2, 3, 6, 10)};
  for (std::size_t slot = 0; slot < all[3].chosen.size(); ++slot)
    if (slot / 2 % 3 == 1) all[3].chosen[slot] = -1;
  return all;
}

struct Sorted {
  Tensor order, counts;
};
inline Sorted sorted(const Tensor& chosen, std::int64_t experts) {
  const Sorted s{unset({chosen.numel()}), unset({experts})};
  sort_slots(stream(), s.order, s.counts, chosen);
  return s;
}

// The router's kernels.

inline Tensor scores_of(const Tensor& logits, ScoreKind kind) {
  Tensor scores = poisoned(logits.shape(), logits.dtype());
  router_scores(stream(), scores, logits, kind);
  return scores;
}
inline Tensor choice_of(const Tensor& scores, const Tensor& bias, const ChoiceRule& rule) {
  Tensor chosen = device_ints(Ints(static_cast<std::size_t>(scores.dim(0) * rule.top_k), -7), {scores.dim(0), rule.top_k});
  choose_experts(stream(), chosen, scores, bias, rule);
  return chosen;
}
inline Tensor weights_of(const Tensor& scores, const Tensor& chosen, bool renormalise, double scale) {
  Tensor weights = poisoned(chosen.shape(), scores.dtype());
  routing_weights(stream(), weights, scores, chosen, renormalise, scale);
  return weights;
}
inline Tensor load_of(const Tensor& scores, const Tensor& chosen, const Tensor& sequence, std::int64_t sequences,
                      ScoreKind kind) {
  Tensor load = poisoned({sequences, 2, scores.dim(1)}, Dtype::kFp64);
  router_load(stream(), load, scores, chosen, sequence, kind);
  return load;
}
struct Balance {
  double loss;
  Tensor gradient;
};
inline Balance balance_of(const Tensor& load, const Values& lengths, int top_k, double coefficient = 1, double scale = 1,
                          Dtype dtype = Dtype::kFp64) {
  const Tensor loss = poisoned({1}, Dtype::kFp64), gradient = poisoned({load.dim(0), load.dim(2)}, dtype);
  balance_loss(stream(), loss, gradient, load, fp64(lengths), top_k, coefficient, scale);
  return {values_of(loss)[0], gradient};
}
inline double z_of(const Tensor& logits, const std::vector<std::int32_t>& sequence) {
  const Tensor z = poisoned({1}, Dtype::kFp64);
  router_z_sum(stream(), z, logits, ints(sequence));
  return values_of(z)[0];
}
// What the gradient of the main loss alone reads.
inline RouterGradient main_gradient(const Tensor& scores, const Tensor& chosen, const Tensor& dweights, ScoreKind kind,
                                    bool renormalise) {
  RouterGradient g;
  g.kind = kind;
  g.renormalise = renormalise;
  g.scores = scores;
  g.chosen = chosen;
  g.dweights = dweights;
  return g;
}
inline double z_of(const Tensor& logits) {
  return z_of(logits, std::vector<std::int32_t>(static_cast<std::size_t>(logits.dim(0)), 0));
}
inline Tensor dlogits_of(const RouterGradient& g) {
  Tensor dlogits = poisoned(g.scores.shape(), g.scores.dtype());
  router_backward(stream(), dlogits, g);
  return dlogits;
}

// Of one row.
inline double reference_lse(const double* x, std::int64_t experts) {
  const double greatest = *std::max_element(x, x + experts);
  double sum = 0;
  for (std::int64_t e = 0; e < experts; ++e) sum += std::exp(x[e] - greatest);
  return std::log(sum) + greatest;
}
inline Values reference_scores(const Values& logits, std::int64_t experts, ScoreKind kind) {
  Values s;
  for (std::int64_t row = 0; row < size_of(logits); row += experts) {
    const double* x = &logits[static_cast<std::size_t>(row)];
    const double lse = reference_lse(x, experts);
    for (std::int64_t e = 0; e < experts; ++e)
      s.push_back(kind == ScoreKind::kSoftmax ? std::exp(x[e] - lse) : 1 / (1 + std::exp(-x[e])));
  }
  return s;
}

template <typename F>
void refused(const F& f) {
  EXPECT_THROW(f(), std::logic_error);
}

}  // namespace ref5d::testing::moe
