#include <algorithm>

#include "common/kernels/adamw.h"
#include "common/kernels/elementwise.h"
#include "common/kernels/grad_norm.h"
#include "tests/support/kernel_repeat.h"

namespace ref5d::testing {
namespace {

using Values = std::vector<double>;

// A parameter with its optimizer state, all of one value or of given values.
struct State {
  Tensor weight, master, m, v;
  State(const Values& w, Dtype dtype) {
    const auto n = static_cast<std::int64_t>(w.size());
    const Dtype wide = accumulator_of(dtype);
    weight = device_tensor(w, {n}, dtype);
    if (wide != dtype) master = device_tensor(w, {n}, wide);
    m = device_tensor(Values(w.size(), 0.0), {n}, wide);
    v = device_tensor(Values(w.size(), 0.0), {n}, wide);
  }
  void step(const Values& grad, Dtype grad_dtype, const AdamwOptions& options, std::int64_t t, double grad_scale = 1) const {
    adamw(stream(), weight, master, device_tensor(grad, {static_cast<std::int64_t>(grad.size())}, grad_dtype), m, v,
          device_tensor({grad_scale}, {1}, Dtype::kFp64), options, t);
  }
};

using Epsilon = AdamwOptions::Epsilon;

// The published algorithm in fp64, with its epsilon in any of the three places.
struct Reference {
  Values w, m, v;
  explicit Reference(const Values& weights) : w(weights), m(weights.size(), 0.0), v(weights.size(), 0.0) {}
  void step(const Values& grad, const AdamwOptions& o, std::int64_t t, double grad_scale = 1) {
    const double c1 = 1 - std::pow(o.beta1, double(t)), c2 = 1 - std::pow(o.beta2, double(t));
    for (std::size_t i = 0; i < w.size(); ++i) {
      const double g = grad[i] * grad_scale;
      m[i] = o.beta1 * m[i] + (1 - o.beta1) * g;
      v[i] = o.beta2 * v[i] + (1 - o.beta2) * g * g;
      double update = (m[i] / c1) / (std::sqrt(v[i] / c2) + o.eps);
      if (o.epsilon == Epsilon::kInsideRoot) update = (m[i] / c1) / std::sqrt(v[i] / c2 + o.eps);
      if (o.epsilon == Epsilon::kBeforeCorrection) update = m[i] / (std::sqrt(v[i]) + o.eps) * std::sqrt(c2) / c1;
      w[i] -= o.lr * (update + o.weight_decay * w[i]);
    }
  }
};

TEST(AdamwKernel, AHundredStepsMatchTheReferenceInEveryDtype) {
  for (const Dtype dtype : kFloatDtypes) {
    for (const Dtype grad_dtype : {dtype, accumulator_of(dtype)}) {
      for (const Epsilon epsilon : {Epsilon::kOutside, Epsilon::kInsideRoot, Epsilon::kBeforeCorrection}) {
        const std::int64_t n = 129;
        const AdamwOptions options{
            .lr = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-3, .weight_decay = 0.1, .epsilon = epsilon};
        const Values start = rounded(random_values(n, 1), dtype);
        const State state(start, dtype);
        Reference reference(start);
        for (int t = 1; t <= 100; ++t) {
          const Values grad = rounded(random_values(n, unsigned(100 + t)), grad_dtype);
          state.step(grad, grad_dtype, options, t, 0.5);
          reference.step(grad, options, t, 0.5);
        }
        const double bound = dtype == Dtype::kFp64 ? 1e-13 : 3e-6;
        EXPECT_LT(relative_error(values_of(state.m), reference.m), bound);
        EXPECT_LT(relative_error(values_of(state.v), reference.v), bound);
        EXPECT_LT(relative_error(values_of(dtype == Dtype::kBf16 ? state.master : state.weight), reference.w), bound);
        if (dtype == Dtype::kBf16) {
          EXPECT_EQ(values_of(state.weight), rounded(values_of(state.master), dtype));
        }
      }
    }
  }
}

TEST(AdamwKernel, EverySizeIsCovered) {
  std::vector<std::int64_t> sizes = kAwkwardSizes;
  sizes.push_back(kSeveralBlocks);
  for (const std::int64_t n : sizes) {
    const Values start = rounded(random_values(n, 2), Dtype::kBf16), grad = rounded(random_values(n, 3), Dtype::kBf16);
    const State state(start, Dtype::kBf16);
    Reference reference(start);
    state.step(grad, Dtype::kBf16, {}, 1);
    reference.step(grad, {}, 1);
    EXPECT_LT(relative_error(values_of(state.master), reference.w), 1e-6) << n;
    EXPECT_LT(relative_error(values_of(state.weight), reference.w), tolerance(Dtype::kBf16)) << n;
  }
}

// Step 1 with g = eps = 1e-8: the update over lr is g / (|g| + eps) = 1/2. Epsilon before the bias correction or inside the
// root gives something else.
TEST(AdamwKernel, P16_EpsilonStandsOutsideTheRootAfterTheCorrection) {
  for (const Dtype dtype : {Dtype::kFp64, Dtype::kFp32}) {
    auto update = [&](Epsilon epsilon) {
      const State state({0.0}, dtype);
      state.step({1e-8}, dtype, {.lr = 1, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0, .epsilon = epsilon}, 1);
      return -values_of(state.weight)[0];
    };
    EXPECT_NEAR(update(Epsilon::kOutside), 0.5, 1e-6);
    EXPECT_NEAR(update(Epsilon::kBeforeCorrection), 0.03065, 1e-5);
    EXPECT_NEAR(update(Epsilon::kInsideRoot), 1e-4, 1e-9);
  }
}

// w = 1 and ten updates of -1e-3. A constant gradient makes every update lr exactly.
TEST(AdamwKernel, P14_MasterWeightsKeepUpdatesThatBf16Loses) {
  const AdamwOptions options{.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-12, .weight_decay = 0};
  const State state({1.0}, Dtype::kBf16);
  for (int t = 1; t <= 10; ++t) state.step({1.0}, Dtype::kBf16, options, t);
  EXPECT_NEAR(values_of(state.master)[0], 0.99, 1e-6);
  EXPECT_EQ(values_of(state.weight)[0], 0.98828125);  // the bf16 number nearest to 0.99
  // Without masters, that is with masters made anew from the bf16 weight before every step, nothing ever moves.
  const State frozen({1.0}, Dtype::kBf16);
  for (int t = 1; t <= 10; ++t) {
    convert(stream(), frozen.master, frozen.weight);
    frozen.step({1.0}, Dtype::kBf16, options, t);
  }
  EXPECT_EQ(values_of(frozen.weight)[0], 1.0);
}

TEST(AdamwKernel, P15_DecayShrinksWeightsAndNothingElseDoes) {
  for (const Dtype dtype : kFloatDtypes) {
    const Values start{2, -3, 0.5};
    const State decayed(start, dtype), plain(start, dtype);
    decayed.step({0, 0, 0}, dtype, {.lr = 0.1, .weight_decay = 0.1}, 1);
    plain.step({0, 0, 0}, dtype, {.lr = 0.1, .weight_decay = 0}, 1);
    const Values w = values_of(dtype == Dtype::kBf16 ? decayed.master : decayed.weight);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(w[i], 0.99 * start[i], 1e-6);
    EXPECT_EQ(values_of(plain.weight), start);  // and no NaN from v = 0
    EXPECT_EQ(values_of(plain.m), Values(3, 0.0));
  }
}

// 1 - pow(beta, t) would lose half of its digits for a beta this near 1. A constant gradient makes every update lr exactly.
TEST(AdamwKernel, BiasCorrectionKeepsItsDigits) {
  const State state({0.0}, Dtype::kFp64);
  const AdamwOptions options{.lr = 1, .beta1 = 0.9, .beta2 = 1 - 1e-8, .eps = 0, .weight_decay = 0};
  for (int t = 1; t <= 3; ++t) state.step({3.0}, Dtype::kFp64, options, t);
  EXPECT_NEAR(values_of(state.weight)[0], -3, 1e-12);
}

TEST(AdamwKernel, ANonFiniteScaleShows) {
  for (const double bad : {std::nan(""), double(INFINITY)}) {
    const State state({1, 2}, Dtype::kFp32);
    state.step({0.5, -0.5}, Dtype::kFp32, {}, 1, bad);
    for (const double w : values_of(state.weight)) EXPECT_TRUE(std::isnan(w));
  }
}

TEST(AdamwKernel, RepeatsBitwiseAndTakesNoElements) {
  expect_repeatable([] {
    const State state(random_values(kSeveralBlocks, 4), Dtype::kBf16);
    state.step(random_values(kSeveralBlocks, 5), Dtype::kFp32, {}, 3);
    return state.master;
  });
  const State none({}, Dtype::kFp32);
  none.step({}, Dtype::kFp32, {}, 1);
  EXPECT_TRUE(values_of(none.weight).empty());
}

TEST(AdamwKernel, WrongArgumentsAreRefused) {
  const State bf16({1, 2}, Dtype::kBf16), fp32({1, 2}, Dtype::kFp32);
  const Tensor scale = device_tensor({1}, {1}, Dtype::kFp64), grad = device_tensor({1, 2}, {2}, Dtype::kFp32), none;
  auto call = [&](const State& s, const Tensor& master, const Tensor& g, const Tensor& m, const Tensor& grad_scale,
                  std::int64_t step) { adamw(stream(), s.weight, master, g, m, s.v, grad_scale, {}, step); };
  EXPECT_NO_THROW(call(fp32, none, grad, fp32.m, scale, 1));
  EXPECT_NO_THROW(call(bf16, bf16.master, grad, bf16.m, scale, 1));
  EXPECT_THROW(call(bf16, none, grad, bf16.m, scale, 1), std::logic_error);
  EXPECT_THROW(call(fp32, bf16.master, grad, fp32.m, scale, 1), std::logic_error);
  EXPECT_THROW(call(bf16, bf16.weight, grad, bf16.m, scale, 1), std::logic_error);
  EXPECT_THROW(call(fp32, none, bf16.weight, fp32.m, scale, 1), std::logic_error);
  EXPECT_THROW(call(fp32, none, poisoned({3}, Dtype::kFp32), fp32.m, scale, 1), std::logic_error);
  EXPECT_THROW(call(fp32, none, grad, bf16.weight, scale, 1), std::logic_error);
  EXPECT_THROW(call(fp32, none, grad, fp32.m, grad, 1), std::logic_error);
  EXPECT_THROW(call(fp32, none, grad, fp32.m, scale, 0), std::logic_error);
}

// One partial per kNormBlock elements, whatever the number of blocks.
TEST(GradientNorm, PartialsAreTheSquaresOfFixedBlocks) {
  std::vector<std::int64_t> sizes = kAwkwardSizes;
  sizes.insert(sizes.end(), {0, kNormBlock - 1, kNormBlock, kNormBlock + 1, 2 * kNormBlock, 3 * kNormBlock + 7});
  for (const Dtype dtype : kFloatDtypes) {
    for (const std::int64_t n : sizes) {
      const Values x = rounded(random_values(n, 6), dtype);
      Values expected(std::size_t(norm_blocks(n)), 0.0);
      for (std::size_t i = 0; i < x.size(); ++i) expected[i / std::size_t(kNormBlock)] += x[i] * x[i];
      const Tensor partials = poisoned({norm_blocks(n)}, Dtype::kFp64);
      sum_of_squares(stream(), partials, device_tensor(x, {n}, dtype));
      EXPECT_LT(relative_error(values_of(partials), expected), 1e-14) << n;
    }
  }
}

TEST(GradientNorm, SquaresOfFp32DoNotOverflow) {
  const Tensor partials = poisoned({1}, Dtype::kFp64);
  sum_of_squares(stream(), partials, device_tensor({1e30, 1e30}, {2}, Dtype::kFp32));
  EXPECT_NEAR(values_of(partials)[0] / 2e60, 1, 1e-6);
}

struct Clip {
  double norm, scale;
};
Clip clip(const Values& partials, double max_norm) {
  const Tensor scale = poisoned({1}, Dtype::kFp64), norm = poisoned({1}, Dtype::kFp64);
  clip_scale(stream(), scale, norm, device_tensor(partials, {static_cast<std::int64_t>(partials.size())}, Dtype::kFp64),
             max_norm);
  return {values_of(norm)[0], values_of(scale)[0]};
}

// Each kind of parameter is one decimal digit of the squared norm.
TEST(GradientNorm, T2_DigitNorm) {
  for (const Dtype dtype : {Dtype::kFp64, Dtype::kFp32}) {
    Values partials;
    for (const Values& gradient : {Values{0.6, 0.8}, Values{1, 3}, Values{6, 8}, Values{20}, Values{10, 10, 20}}) {
      const Tensor partial = poisoned({1}, Dtype::kFp64);
      sum_of_squares(stream(), partial, device_tensor(gradient, {static_cast<std::int64_t>(gradient.size())}, dtype));
      partials.push_back(values_of(partial)[0]);
    }
    const Clip result = clip(partials, 1.0);
    EXPECT_NEAR(result.norm * result.norm, 1111, 1e-4);
    EXPECT_NEAR(result.norm, 33.33167, 1e-5);
    EXPECT_NEAR(result.scale, 0.0300015, 1e-7);
  }
}

TEST(GradientNorm, ClipsOnlyWhatIsLongerAndOnlyWhenAsked) {
  EXPECT_EQ(clip({9, 16}, 5).norm, 5);
  EXPECT_EQ(clip({9, 16}, 5).scale, 1);
  EXPECT_EQ(clip({9, 16}, 10).scale, 1);
  EXPECT_EQ(clip({9, 16}, 2.5).scale, 0.5);
  EXPECT_EQ(clip({9, 16}, 0).scale, 1);
  EXPECT_EQ(clip({9, 16}, -1).scale, 1);
  EXPECT_EQ(clip({0, 0}, 1).norm, 0);
  EXPECT_EQ(clip({0, 0}, 1).scale, 1);
  EXPECT_EQ(clip({}, 1).norm, 0);
  EXPECT_EQ(clip({}, 1).scale, 1);
  const Clip many = clip(Values(1000, 4.0), 1);
  EXPECT_NEAR(many.norm, std::sqrt(4000.0), 1e-12);
}

TEST(GradientNorm, ANonFiniteNormShows) {
  EXPECT_TRUE(std::isnan(clip({1, std::nan("")}, 1).scale));
  EXPECT_TRUE(std::isnan(clip({1, std::nan("")}, 1).norm));
  EXPECT_TRUE(std::isinf(clip({1, INFINITY}, 1).scale));
  EXPECT_TRUE(std::isinf(clip({1, INFINITY}, 1).norm));
  EXPECT_EQ(clip({1, std::nan("")}, 0).scale, 1);  // clipping is off
}

TEST(GradientNorm, RepeatsBitwise) {
  expect_repeatable([] {
    const std::int64_t n = 5 * kNormBlock + 3;
    const Tensor partials = poisoned({norm_blocks(n)}, Dtype::kFp64), norm = poisoned({1}, Dtype::kFp64),
                 scale = poisoned({1}, Dtype::kFp64);
    sum_of_squares(stream(), partials, device_tensor(random_values(n, 7), {n}, Dtype::kFp32));
    clip_scale(stream(), scale, norm, partials, 1);
    return norm;
  });
}

TEST(GradientNorm, WrongShapesAndDtypesAreRefused) {
  const Tensor x = poisoned({kNormBlock + 1}, Dtype::kFp32), one = poisoned({1}, Dtype::kFp64),
               two = poisoned({2}, Dtype::kFp64);
  EXPECT_NO_THROW(sum_of_squares(stream(), two, x));
  EXPECT_THROW(sum_of_squares(stream(), one, x), std::logic_error);
  EXPECT_THROW(sum_of_squares(stream(), poisoned({2}, Dtype::kFp32), x), std::logic_error);
  EXPECT_THROW(clip_scale(stream(), two, one, two, 1), std::logic_error);
  EXPECT_THROW(clip_scale(stream(), one, one, x, 1), std::logic_error);
}

}  // namespace
}  // namespace ref5d::testing
