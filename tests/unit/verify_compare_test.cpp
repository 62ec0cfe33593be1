#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <stdexcept>

#include "common/verify/compare.h"
#include "tests/support/special_values.h"

namespace ref5d {
namespace {

std::vector<double> random_values(std::size_t n, unsigned seed, double scale = 1) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> normal(0, scale);
  std::vector<double> v(n);
  for (double& x : v) x = normal(generator);
  return v;
}

const NamedError& entry(const std::vector<NamedError>& errors, const std::string& name) {
  for (const NamedError& e : errors) {
    if (e.name == name) return e;
  }
  throw std::out_of_range("no entry " + name);
}

TEST(TensorErrorTest, IsTheRelativeTwoNorm) {
  const std::vector<double> a{3, 4, 0}, b{0, 0, 5};
  const TensorError e = tensor_error(a, b, 0);
  EXPECT_DOUBLE_EQ(e.relative, std::sqrt(50.0) / 5);
  EXPECT_EQ(e.max_abs, 5);
  EXPECT_EQ(e.worst_index, 2);
}

TEST(TensorErrorTest, TakesTheReferenceAndNotTheCandidateAsItsScale) {
  const std::vector<double> big{100}, small{1};
  EXPECT_DOUBLE_EQ(tensor_error(big, small, 0).relative, 99);
  EXPECT_DOUBLE_EQ(tensor_error(small, big, 0).relative, 0.99);
}

TEST(TensorErrorTest, OneWrongElementShowsAtAnyPositionAndSize) {
  for (std::size_t n : {1u, 2u, 31u, 32u, 33u, 257u}) {
    const std::vector<double> b = random_values(n, 7);
    EXPECT_EQ(tensor_error(b, b, 0).relative, 0);
    for (std::size_t at : {std::size_t{0}, n / 2, n - 1}) {
      std::vector<double> a = b;
      a[at] += 1e-6;
      const TensorError e = tensor_error(a, b, 0);
      EXPECT_GT(e.relative, 1e-11);
      EXPECT_EQ(e.worst_index, static_cast<std::int64_t>(at));
      EXPECT_NEAR(e.max_abs, 1e-6, 1e-15);
    }
  }
}

TEST(TensorErrorTest, WhatIsNotFiniteIsInfinitelyWrongOnEitherSide) {
  const std::vector<double> good{1, 2, 3};
  for (double bad : {kNan, kInf, -kInf}) {
    const std::vector<double> broken{1, bad, 3};
    for (const TensorError& e :
         {tensor_error(broken, good, 0), tensor_error(good, broken, 0), tensor_error(broken, broken, 1)}) {
      EXPECT_EQ(e.relative, kInf);
      EXPECT_EQ(e.max_abs, kInf);
      EXPECT_EQ(e.worst_index, 1);
    }
  }
  EXPECT_EQ(tensor_error(good, good, kNan).relative, kInf);
  EXPECT_EQ(tensor_error(good, good, kInf).relative, kInf);
}

TEST(TensorErrorTest, UnequalSizesAreInfinitelyWrong) {
  const std::vector<double> a{1, 2}, b{1, 2, 3};
  EXPECT_EQ(tensor_error(a, b, 0).relative, kInf);
  EXPECT_EQ(tensor_error(b, a, 0).relative, kInf);
  EXPECT_EQ(tensor_error({}, a, 0).relative, kInf);
  EXPECT_EQ(tensor_error({}, {}, 0).relative, 0);
}

TEST(TensorErrorTest, TheFloorIsTheLeastScale) {
  const std::vector<double> a{1e-9}, zero{0};
  EXPECT_DOUBLE_EQ(tensor_error(a, zero, 1e-3).relative, 1e-6);
  EXPECT_EQ(tensor_error(a, zero, 0).relative, kInf);
  EXPECT_EQ(tensor_error(zero, zero, 0).relative, 0);
  const std::vector<double> ten{10}, nine{9};
  EXPECT_DOUBLE_EQ(tensor_error(nine, ten, 1).relative, 0.1) << "a floor below the norm plays no part";
}

TEST(TensorErrorTest, ExtremeMagnitudesNeitherOverflowNorVanish) {
  for (double scale : {1e-250, 1e250}) {
    const std::vector<double> a{3 * scale, 4 * scale}, b{3 * scale, 5 * scale};
    EXPECT_NEAR(tensor_error(a, b, 0).relative, 1 / std::sqrt(34.0), 1e-12);
  }
}

TEST(TensorErrorTest, TrimmingLeavesOutTheFurthestOff) {
  std::vector<double> b(200, 1.0), a = b;
  a[7] = 5, a[100] = -3;
  EXPECT_EQ(tensor_error(a, b, 0, 0.01).relative, 0);
  EXPECT_EQ(tensor_error(a, b, 0, 0.01).max_abs, 4) << "of all elements";
  a[150] = 2;
  EXPECT_DOUBLE_EQ(tensor_error(a, b, 0, 0.01).relative, 1 / std::sqrt(200.0));
  EXPECT_EQ(tensor_error(std::vector<double>{2, 1}, std::vector<double>{1, 1}, 0, 0.01).relative, 0) << "at least one";
  EXPECT_EQ(tensor_error(std::vector<double>{2}, std::vector<double>{1}, 0, 0.01).relative, 1) << "but never all";
  a[3] = kNan;
  EXPECT_EQ(tensor_error(a, b, 0, 0.5).relative, kInf) << "what is not finite is never left out";
}

TEST(FloorsTest, FollowTheirDefinitions) {
  const NamedValues b{{"p", std::vector<double>(9, 2.0)}, {"q", std::vector<double>(16, 0.0)}};  // norm 6, 25 elements, rms 1.2
  const double rounding = 6 * std::numeric_limits<double>::epsilon() / 1e-11;
  EXPECT_NEAR(Floors(CompareKind::kGradient, b).of(16), rounding, 1e-15);
  EXPECT_NEAR(Floors(CompareKind::kActivation, b).of(16), rounding, 1e-15);
  EXPECT_NEAR(Floors(CompareKind::kUpdate, b).of(16), 4 * 1.2, 1e-12);
  EXPECT_NEAR(Floors(CompareKind::kParameter, b).of(16), 4 * 1.2, 1e-12);
  NormSum sum;
  sum.add(b.at("p"));
  sum.add(b.at("q"));
  EXPECT_NEAR(Floors(CompareKind::kParameter, sum).of(16), 4 * 1.2, 1e-12);
  EXPECT_EQ(Floors(CompareKind::kParameter, NamedValues{}).of(16), 0);
}

TEST(KindOfTest, ReplacesLayerAndExpertNumbersOnly) {
  EXPECT_EQ(kind_of("model.layers.12.input_layernorm.weight"), "model.layers.*.input_layernorm.weight");
  EXPECT_EQ(kind_of("model.layers.0.block_sparse_moe.experts.17.w1.weight"),
            "model.layers.*.block_sparse_moe.experts.*.w1.weight");
  EXPECT_EQ(kind_of("hidden/3"), "hidden/*");
  EXPECT_EQ(kind_of("transformer.h.2.ln_1.bias"), "transformer.h.*.ln_1.bias");
  EXPECT_EQ(kind_of("model.norm.weight"), "model.norm.weight");
  EXPECT_EQ(kind_of(""), "");
}

TEST(CompareSetsTest, ListsEveryTensorSortedAndPoolsTheSmallOnes) {
  NamedValues b;
  for (int layer = 0; layer < 11; ++layer) {
    b["model.layers." + std::to_string(layer) + ".input_layernorm.weight"] = random_values(kPoolBelow - 1, 10 + layer);
    b["model.layers." + std::to_string(layer) + ".mlp.up_proj.weight"] = random_values(kPoolBelow, 50 + layer);
  }
  b["model.norm.weight"] = random_values(5, 99);
  const std::vector<NamedError> errors = compare_sets(b, b, CompareKind::kGradient);
  ASSERT_EQ(errors.size(), 11u + 2u);
  for (std::size_t i = 1; i < errors.size(); ++i) EXPECT_LT(errors[i - 1].name, errors[i].name);
  for (const NamedError& e : errors) EXPECT_EQ(e.error.relative, 0) << e.name;
  EXPECT_EQ(entry(errors, "model.layers.*.input_layernorm.weight").tensors, 11);
  EXPECT_EQ(entry(errors, "model.norm.weight").tensors, 1);
}

TEST(CompareSetsTest, EveryTensorCanFailAlone) {
  NamedValues b;
  for (int layer = 0; layer < 3; ++layer) {
    b["layers." + std::to_string(layer) + ".norm"] = random_values(8, 10 + layer);
    b["layers." + std::to_string(layer) + ".proj"] = random_values(70, 50 + layer);
  }
  for (CompareKind kind : {CompareKind::kGradient, CompareKind::kParameter, CompareKind::kActivation}) {
    for (const auto& [name, values] : b) {
      NamedValues a = b;
      a[name].back() += 1e-8;
      for (const NamedError& e : compare_sets(a, b, kind)) {
        const bool hit = e.name == name || e.name == kind_of(name);
        EXPECT_EQ(e.error.relative > 1e-11, hit && (e.tensors == 1 || e.name == kind_of(name))) << name << " in " << e.name;
      }
    }
  }
}

TEST(CompareSetsTest, MissingExtraAndUnequalAreNamedAndInfinite) {
  const NamedValues b{{"layers.0.norm", {1, 2}}, {"layers.1.norm", {1, 2}}, {"head", {1}}};
  NamedValues a = b;
  a.erase("head");
  a["layers.1.norm"] = {1, 2, 3};
  a["tail"] = {1};
  const std::vector<NamedError> errors = compare_sets(a, b, CompareKind::kGradient);
  ASSERT_EQ(errors.size(), 4u);
  EXPECT_EQ(entry(errors, "head").error.relative, kInf);
  EXPECT_NE(entry(errors, "head").note.find("missing"), std::string::npos);
  EXPECT_EQ(entry(errors, "tail").error.relative, kInf);
  EXPECT_NE(entry(errors, "tail").note.find("extra"), std::string::npos);
  EXPECT_EQ(entry(errors, "layers.1.norm").error.relative, kInf);
  EXPECT_NE(entry(errors, "layers.1.norm").note.find("3 elements"), std::string::npos);
  EXPECT_EQ(entry(errors, "layers.*.norm").error.relative, 0) << "the healthy one of the kind is still compared";
}

TEST(CompareSetsTest, WhatIsNotFiniteFailsItsTensorAndLeavesTheOthersMeasurable) {
  for (double bad : {kNan, kInf}) {
    NamedValues b{{"x", random_values(40, 1)}, {"y", random_values(40, 2)}};
    NamedValues a = b;
    a["y"][0] += 1e-3;
    b["x"][7] = bad;
    for (CompareKind kind : {CompareKind::kGradient, CompareKind::kParameter}) {
      const std::vector<NamedError> errors = compare_sets(a, b, kind);
      EXPECT_EQ(entry(errors, "x").error.relative, kInf);
      EXPECT_GT(entry(errors, "y").error.relative, 1e-6);
      EXPECT_LT(entry(errors, "y").error.relative, 1e-2);
    }
  }
}

TEST(CompareSetsTest, AGradientThatIsZeroInExactArithmeticIsMeasuredAgainstAllGradients) {
  NamedValues b{{"k_proj.bias", std::vector<double>(64, 0.0)}, {"k_proj.weight", random_values(4096, 3)}};
  NamedValues a = b;
  a["k_proj.bias"] = random_values(64, 4, 1e-18);  // rounding
  EXPECT_LT(entry(compare_sets(a, b, CompareKind::kGradient), "k_proj.bias").error.relative, 1e-11);
  a["k_proj.bias"] = random_values(64, 4, 1e-14);  // small, but far more than rounding
  EXPECT_GT(entry(compare_sets(a, b, CompareKind::kGradient), "k_proj.bias").error.relative, 1e-11);
}

TEST(CompareSeriesTest, HasOneEntryPerStepInOrder) {
  const std::vector<double> b{5, 4, 3, 2, 1, 1, 1, 1, 1, 1};
  std::vector<double> a = b;
  a[9] += 1e-9;
  const std::vector<NamedError> errors = compare_series(a, b);
  ASSERT_EQ(errors.size(), 10u);
  EXPECT_EQ(errors[1].name, "step 2");
  EXPECT_EQ(errors[9].name, "step 10");
  for (std::size_t i = 0; i < 10; ++i) EXPECT_EQ(errors[i].error.relative > 1e-11, i == 9);
}

TEST(CompareSeriesTest, AShortSeriesIsInfinitelyWrongFromItsEndOn) {
  const std::vector<double> two{1, 2}, three{1, 2, 3};
  for (const auto& errors : {compare_series(two, three), compare_series(three, two)}) {
    ASSERT_EQ(errors.size(), 3u);
    EXPECT_EQ(errors[1].error.relative, 0);
    EXPECT_EQ(errors[2].error.relative, kInf);
    EXPECT_FALSE(errors[2].note.empty());
  }
}

TEST(DifferenceTest, IsTheUpdateAndRejectsUnequalSets) {
  const NamedValues final_values{{"w", {2, 3}}}, initial{{"w", {1, 5}}};
  EXPECT_EQ(difference(final_values, initial).at("w"), (std::vector<double>{1, -2}));
  EXPECT_THROW((void)difference(final_values, {{"v", {1, 5}}}), std::invalid_argument);
  EXPECT_THROW((void)difference(final_values, {{"w", {1}}}), std::invalid_argument);
  EXPECT_THROW((void)difference(final_values, {}), std::invalid_argument);
}

TEST(YardstickTest, IsThreeTimesTheOwnErrorWithAFloor) {
  EXPECT_EQ(yardstick_tolerance(Dtype::kFp64, 1.0), 1e-11) << "fp64 has no better truth: its bound never moves";
  EXPECT_EQ(yardstick_tolerance(Dtype::kFp64, 0), 1e-11);
  EXPECT_EQ(yardstick_tolerance(Dtype::kFp32, 0), 1e-6);
  EXPECT_DOUBLE_EQ(yardstick_tolerance(Dtype::kFp32, 1e-5), 3e-5);
  EXPECT_EQ(yardstick_tolerance(Dtype::kBf16, 1e-3), 4e-3);
  EXPECT_DOUBLE_EQ(yardstick_tolerance(Dtype::kBf16, 1e-2), 3e-2);
  EXPECT_THROW((void)yardstick_tolerance(Dtype::kInt32, 0), std::invalid_argument);
}

TEST(YardstickTest, ABrokenReferenceExcusesNothing) {
  for (Dtype dtype : {Dtype::kFp64, Dtype::kFp32, Dtype::kBf16}) {
    EXPECT_EQ(yardstick_tolerance(dtype, kInf), least_tolerance(dtype));
    EXPECT_EQ(yardstick_tolerance(dtype, kNan), least_tolerance(dtype));
  }
}

TEST(YardstickTest, ReorderedSumsHoldAndLostPrecisionDoesNot) {
  // Sums of 4096 terms: the truth in fp64, the reference and a reordered candidate in fp32, and one that rounds to 8 bits.
  const std::vector<double> terms = random_values(4096, 11);
  NamedValues truth, reference, reordered, coarse;
  for (std::size_t out = 0; out < 64; ++out) {
    double exact = 0;
    float forward = 0, backward = 0;
    for (std::size_t i = 0; i < terms.size(); ++i) {
      exact += terms[i] * std::cos(0.1 * static_cast<double>(i * out));
      forward += static_cast<float>(terms[i] * std::cos(0.1 * static_cast<double>(i * out)));
      const std::size_t j = terms.size() - 1 - i;
      backward += static_cast<float>(terms[j] * std::cos(0.1 * static_cast<double>(j * out)));
    }
    truth["y"].push_back(exact);
    reference["y"].push_back(forward);
    reordered["y"].push_back(backward);
    coarse["y"].push_back(std::ldexp(std::round(std::ldexp(exact, 8 - std::ilogb(exact))), std::ilogb(exact) - 8));
  }
  const auto own = compare_sets(reference, truth, CompareKind::kActivation);
  const double tolerance = yardstick_tolerances(Dtype::kFp32, own).at("y");
  EXPECT_LE(compare_sets(reordered, truth, CompareKind::kActivation)[0].error.relative, tolerance);
  EXPECT_GT(compare_sets(coarse, truth, CompareKind::kActivation)[0].error.relative, tolerance);
}

}  // namespace
}  // namespace ref5d
