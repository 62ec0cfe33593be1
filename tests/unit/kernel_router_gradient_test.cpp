// The gradient by a router's logits, of its weights and of both losses by its load.
#include <numeric>

#include "common/kernels/router.h"
#include "tests/support/kernel_repeat.h"
#include "tests/support/moe_kernel_testing.h"

namespace ref5d::testing::moe::of_router_gradient {
namespace {

TEST(RouterKernel, P51_ALoneRenormalisedChoiceHasWeightOneAndNoGradient) {
  const std::int64_t rows = 400, experts = 9;
  for (const Dtype dtype : kWide)
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
  Choice choice;
  ScoreKind kind;
  bool renormalise;
  double scale;
  Ints sequence;
  Values lengths, dweights;
  double coefficient = 0.3, balance_scale = 0.7, z_scale = 0.05;

  [[nodiscard]] Tensor logits(const Values& x, Dtype dtype) const {
    return device_tensor(x, {choice.rows, choice.experts}, dtype);
  }
  [[nodiscard]] Balance balance(const Tensor& scores) const {
    const Tensor load = load_of(scores, choice.on_device(), ints(sequence), size_of(lengths), kind);
    return balance_of(load, lengths, choice.k, coefficient, balance_scale, scores.dtype());
  }
  [[nodiscard]] double loss(const Values& x) const {
    const Tensor l = logits(x, Dtype::kFp64), scores = scores_of(l, kind);
    const Values w = values_of(weights_of(scores, choice.on_device(), renormalise, scale));
    return std::inner_product(w.begin(), w.end(), dweights.begin(), 0.0) + balance_scale * balance(scores).loss +
           z_scale * z_of(l, sequence);
  }
  [[nodiscard]] Tensor gradient(const Values& x, Dtype dtype) const {
    const Tensor l = logits(x, dtype), scores = scores_of(l, kind);
    RouterGradient g =
        main_gradient(scores, choice.on_device(), device_tensor(dweights, {choice.rows, choice.k}, dtype), kind, renormalise);
    g.scale = scale;
    g.logits = l;
    g.balance_gradient = balance(scores).gradient;
    g.sequence = ints(sequence);
    g.z_scale = z_scale;
    return dlogits_of(g);
  }
};

FixedChoice fixed_choice(std::int64_t rows, std::int64_t experts, int k, std::int64_t sequences, ScoreKind kind,
                         bool renormalise, double scale) {
  FixedChoice f{distinct_choice(rows, k, experts, 7), kind, renormalise, scale, {}, {}, {}};
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
  const Values x = random_values(f.choice.rows * f.choice.experts, 9);
  const Values expected = finite_difference([&](const Values& v) { return Values{f.loss(v)}; }, x, {1.0});
  EXPECT_LT(relative_error(values_of(f.gradient(x, Dtype::kFp64)), expected), 1e-7)
      << f.choice.experts << " experts, k " << f.choice.k << ", " << f.lengths.size() << " sequences, renormalised "
      << f.renormalise << ", scale " << f.scale << ", sigmoid " << (f.kind == ScoreKind::kSigmoid);
}

TEST(RouterKernel, BackwardIsTheGradientOfAllThreeLosses) {
  for (const ScoreKind kind : kKinds)
    for (const bool renormalise : {true, false}) {
      for (const double scale : {1.0, 2.5})
        for (const int k : {1, 2, 4})
          for (const std::int64_t sequences : {1, 3})
            expect_gradient_of_loss(fixed_choice(5, 6, k, sequences, kind, renormalise, scale));
      expect_gradient_of_loss(fixed_choice(2, 70, 4, 2, kind, renormalise, 2.5));  // more experts than a warp has threads
    }
}

TEST(RouterKernel, BackwardInFp32IsNearThatInFp64) {
  for (const ScoreKind kind : kKinds)
    for (const std::int64_t experts : {4, 33, 300}) {
      const FixedChoice f = fixed_choice(17, experts, 4, 3, kind, true, 2.5);
      const Values x = rounded(random_values(f.choice.rows * experts, 10), Dtype::kFp32);
      EXPECT_LT(relative_error(values_of(f.gradient(x, Dtype::kFp32)), values_of(f.gradient(x, Dtype::kFp64))), 2e-6)
          << experts;
    }
}

// Of a row of great negative logits: no 0 / 0.
TEST(RouterKernel, ScoresThatHaveUnderflowedAddNothing) {
  for (const Dtype dtype : kWide) {
    const Tensor s = scores_of(device_tensor(Values(8, -2000), {2, 4}, dtype), ScoreKind::kSigmoid);
    EXPECT_EQ(values_of(s), Values(8, 0.0));
    const Tensor chosen = device_ints({0, 1, 2, 3}, {2, 2}), dw = device_tensor({1, 2, 3, 4}, {2, 2}, dtype);
    EXPECT_EQ(values_of(weights_of(s, chosen, true, 2.5)), Values(4, 0.0));
    const Tensor load = load_of(s, chosen, ints({0, 0}), 1, ScoreKind::kSigmoid);
    EXPECT_EQ(values_of(load), Values({1, 1, 1, 1, 0, 0, 0, 0}));
    RouterGradient g = main_gradient(s, chosen, dw, ScoreKind::kSigmoid, true);
    g.balance_gradient = balance_of(load, {2}, 2, 0.3, 0.7, dtype).gradient;
    g.sequence = ints({0, 0});
    EXPECT_EQ(values_of(dlogits_of(g)), Values(8, 0.0));
  }
}

TEST(RouterKernel, GradientRepeatsBitwise) {
  const std::int64_t rows = 700, experts = 40;
  const Values x = random_values(rows * experts, 17);
  for (const ScoreKind kind : kKinds) {
    const FixedChoice f = fixed_choice(rows, experts, 4, 3, kind, true, 1);
    expect_repeatable([&] { return f.gradient(x, Dtype::kFp32); });
  }
}

TEST(RouterKernel, GradientsOfWrongShapesAndDtypesAreRefused) {
  const Tensor s = poisoned({2, 6}, Dtype::kFp32), bf16 = poisoned({2, 6}, Dtype::kBf16),
               other = poisoned({2, 6}, Dtype::kFp64), part = poisoned({2, 7}, Dtype::kFp32).columns(0, 6),
               w = poisoned({2, 3}, Dtype::kFp32);
  const Tensor chosen = device_ints({0, 1, 2, 3, 4, 5}, {2, 3});
  for (const Tensor& wrong : {bf16, other, part, chosen})
    refused([&] { router_backward(stream(), wrong, main_gradient(s, chosen, w, ScoreKind::kSoftmax, true)); });
  RouterGradient g = main_gradient(s, chosen, w, ScoreKind::kSoftmax, true);
  EXPECT_NO_THROW(router_backward(stream(), poisoned({2, 6}, Dtype::kFp32), g));
  g.z_scale = 1;  // without logits
  refused([&] { router_backward(stream(), poisoned({2, 6}, Dtype::kFp32), g); });
  g.sequence = ints({0, 0});
  refused([&] { router_backward(stream(), poisoned({2, 6}, Dtype::kFp32), g); });
  g.logits = s;
  EXPECT_NO_THROW(router_backward(stream(), poisoned({2, 6}, Dtype::kFp32), g));
  g.sequence = {};
  refused([&] { router_backward(stream(), poisoned({2, 6}, Dtype::kFp32), g); });
  g.z_scale = 0;
  g.balance_gradient = poisoned({1, 6}, Dtype::kFp32);
  refused([&] { router_backward(stream(), poisoned({2, 6}, Dtype::kFp32), g); });
}

}  // namespace
}  // namespace ref5d::testing::moe::of_router_gradient
