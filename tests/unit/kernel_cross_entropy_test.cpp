#include <algorithm>

#include "common/kernels/cross_entropy.h"
#include "tests/support/kernel_repeat.h"

namespace ref5d::testing {
namespace {

using Values = std::vector<double>;

struct Result {
  Values loss, dlogits;
};

// The plain formula in fp64.
Result reference(const Values& logits, const Ints& labels, double scale) {
  const std::size_t rows = labels.size(), vocab = logits.size() / rows;
  Result r{Values(rows), Values(logits.size())};
  for (std::size_t t = 0; t < rows; ++t) {
    if (labels[t] == kIgnoreLabel) continue;
    const double* x = &logits[t * vocab];
    const double greatest = *std::max_element(x, x + vocab);
    double sum = 0;
    for (std::size_t i = 0; i < vocab; ++i) sum += std::exp(x[i] - greatest);
    r.loss[t] = std::log(sum) + greatest - x[labels[t]];
    for (std::size_t i = 0; i < vocab; ++i) {
      r.dlogits[t * vocab + i] = (std::exp(x[i] - greatest) / sum - (std::int32_t(i) == labels[t])) * scale;
    }
  }
  return r;
}

Result fused(const Values& logits, const Ints& labels, double scale, Dtype dtype = Dtype::kFp64) {
  const auto rows = static_cast<std::int64_t>(labels.size());
  const Tensor x = device_tensor(logits, {rows, static_cast<std::int64_t>(logits.size()) / rows}, dtype),
               loss = poisoned({rows}, accumulator_of(dtype));
  cross_entropy(stream(), x, loss, ints(labels), scale);
  return {values_of(loss), values_of(x)};
}
Values loss_only(const Values& logits, const Ints& labels, Dtype dtype = Dtype::kFp64) {
  const auto rows = static_cast<std::int64_t>(labels.size());
  const Tensor x = device_tensor(logits, {rows, static_cast<std::int64_t>(logits.size()) / rows}, dtype),
               loss = poisoned({rows}, accumulator_of(dtype));
  cross_entropy_loss(stream(), loss, x, ints(labels));
  EXPECT_EQ(bits_of(x), HostTensor::from_doubles(logits, x.shape(), dtype).data) << "the logits changed";
  return values_of(loss);
}
Result unfused(const Values& logits, const Ints& labels, double scale, Dtype dtype = Dtype::kFp64) {
  const auto rows = static_cast<std::int64_t>(labels.size());
  const Shape shape{rows, static_cast<std::int64_t>(logits.size()) / rows};
  const Tensor x = device_tensor(logits, shape, dtype), p = poisoned(shape, dtype), d = poisoned(shape, dtype),
               loss = poisoned({rows}, accumulator_of(dtype));
  cross_entropy_unfused(stream(), d, p, loss, x, ints(labels), scale);
  EXPECT_EQ(bits_of(x), HostTensor::from_doubles(logits, shape, dtype).data) << "the logits changed";
  return {values_of(loss), values_of(d)};
}

TEST(CrossEntropyKernel, MatchesTheFormulaInEveryDtype) {
  std::vector<std::int64_t> vocabs = kAwkwardSizes;
  vocabs.insert(vocabs.end(), {1000, 5003});
  for (const Dtype dtype : kFloatDtypes) {
    for (const std::int64_t vocab : vocabs) {
      const auto v = static_cast<std::int32_t>(vocab);
      const Ints labels{0, v - 1, v / 2, kIgnoreLabel, v / 3};
      const Values logits = rounded(random_values(5 * vocab, 1, 3), dtype);
      const Result expected = reference(logits, labels, 0.125), actual = fused(logits, labels, 0.125, dtype);
      const double bound = tolerance(accumulator_of(dtype));
      EXPECT_LT(relative_error(actual.loss, expected.loss), bound) << vocab;
      EXPECT_LT(relative_error(actual.dlogits, expected.dlogits), tolerance(dtype)) << vocab;
      EXPECT_LT(relative_error(loss_only(logits, labels, dtype), expected.loss), bound) << vocab;
      const Result steps = unfused(logits, labels, 0.125, dtype);  // its probabilities are rounded to dtype
      EXPECT_LT(relative_error(steps.loss, expected.loss), dtype == Dtype::kBf16 ? 6e-3 : 2 * bound) << vocab;
      EXPECT_LT(relative_error(steps.dlogits, expected.dlogits), 2 * tolerance(dtype)) << vocab;
    }
  }
}

TEST(CrossEntropyKernel, GradientIsThatOfTheLoss) {
  const Ints labels{3, 0, kIgnoreLabel, 6};
  const Values logits = random_values(4 * 7, 2, 2);
  const Values expected = finite_difference([&](const Values& x) { return loss_only(x, labels); }, logits, Values(4, 0.3));
  EXPECT_LT(relative_error(fused(logits, labels, 0.3).dlogits, expected), 1e-7);
  EXPECT_LT(relative_error(unfused(logits, labels, 0.3).dlogits, expected), 1e-7);
}

TEST(CrossEntropyKernel, P25_UniformLogitsGiveTheLogarithmOfTheVocabulary) {
  for (const Dtype dtype : kFloatDtypes) {
    EXPECT_NEAR(fused(Values(5, 0.0), {2}, 1, dtype).loss[0], 1.609438, 1e-6);
    EXPECT_NEAR(loss_only(Values(5, -7.0), {0}, dtype)[0], 1.609438, 1e-6);
  }
}

TEST(CrossEntropyKernel, P26_LargeLogitsNeitherOverflowNorLoseTheLoss) {
  const Values logits{1000, 999, 0, -1000, 998};  // 1000 and its neighbours are even apart in bf16, so only wider dtypes
  for (const Dtype dtype : {Dtype::kFp64, Dtype::kFp32}) {
    const Result expected = reference(logits, {1}, 1);
    for (const Result& r : {fused(logits, {1}, 1, dtype), unfused(logits, {1}, 1, dtype)}) {
      EXPECT_NEAR(r.loss[0], 1.407606, 1e-6);
      for (std::size_t i = 0; i < 5; ++i) EXPECT_NEAR(r.dlogits[i], expected.dlogits[i], 1e-7);
    }
    EXPECT_NEAR(loss_only(logits, {1}, dtype)[0], 1.407606, 1e-6);
    EXPECT_EQ(fused({3e38, -3e38}, {0}, 1, dtype).loss[0], 0);
    // The label's probability is zero in any dtype; the fused loss is right all the same.
    EXPECT_NEAR(fused(logits, {3}, 1, dtype).loss[0], 2000.407606, 2e-4);
  }
}

TEST(CrossEntropyKernel, IgnoredRowsAreZeroWhateverTheirLogits) {
  const double nan = std::nan("");
  const Values logits{1, 2, 3, nan, HUGE_VAL, -HUGE_VAL, nan, nan, nan};
  const Ints labels{0, kIgnoreLabel, kIgnoreLabel};
  for (const Dtype dtype : kFloatDtypes) {
    for (const Result& r : {fused(logits, labels, 2, dtype), unfused(logits, labels, 2, dtype)}) {
      EXPECT_GT(r.loss[0], 2);
      EXPECT_EQ(Values(r.loss.begin() + 1, r.loss.end()), Values(2, 0.0));
      EXPECT_LT(r.dlogits[0], -1);
      EXPECT_EQ(Values(r.dlogits.begin() + 3, r.dlogits.end()), Values(6, 0.0));
    }
  }
  const Tensor x = device_tensor(logits, {3, 3}, Dtype::kFp32), loss = poisoned({3}, Dtype::kFp32);
  cross_entropy_loss(stream(), loss, x, ints(labels));
  EXPECT_EQ(values_of(loss)[1], 0);
  EXPECT_EQ(values_of(loss)[2], 0);
}

TEST(CrossEntropyKernel, ALabelOutsideOfTheVocabularyShowsAsNan) {
  for (const std::int32_t label : {-1, -99, -101, 3, 4, 2147483647, -2147483647}) {
    const Values logits{1, 2, 3, 4, 5, 6};
    const Ints labels{label, 1};
    const Result expected = reference({4, 5, 6}, {1}, 1);
    for (const Result& r : {fused(logits, labels, 1), Result{loss_only(logits, labels), {}}, unfused(logits, labels, 1)}) {
      EXPECT_TRUE(std::isnan(r.loss[0])) << label;
      EXPECT_NEAR(r.loss[1], expected.loss[0], 1e-14);
      for (std::size_t i = 0; i < r.dlogits.size(); ++i) {
        if (i < 3) {
          EXPECT_TRUE(std::isnan(r.dlogits[i])) << label;
        } else {
          EXPECT_NEAR(r.dlogits[i], expected.dlogits[i - 3], 1e-14);
        }
      }
    }
  }
}

TEST(CrossEntropyKernel, ANanLogitShows) {
  for (const double bad : {std::nan(""), double(INFINITY)}) {
    const Result r = fused({1, bad, 3}, {0}, 1, Dtype::kFp32);
    EXPECT_TRUE(std::isnan(r.loss[0]));
    EXPECT_TRUE(std::isnan(r.dlogits[0]));
  }
  const Result r = fused({1, -HUGE_VAL, 1}, {0}, 1, Dtype::kFp32);  // a masked logit is no error
  EXPECT_NEAR(r.loss[0], std::log(2), 1e-6);
  EXPECT_EQ(r.dlogits[1], 0);
}

TEST(CrossEntropyKernel, RowsOfTheGradientSumToZero) {
  const Ints labels{100, 4, 0};
  const Values d = fused(random_values(3 * 129, 3, 4), labels, 1).dlogits;
  for (std::size_t t = 0; t < 3; ++t) {
    double sum = 0;
    for (std::size_t i = 0; i < 129; ++i) sum += d[t * 129 + i];
    EXPECT_NEAR(sum, 0, 1e-14);
  }
}

TEST(AddLossKernel, AddsTheSumInFp64) {
  for (const Dtype dtype : {Dtype::kFp64, Dtype::kFp32}) {
    for (const std::int64_t n : {0, 1, 7, 257, 20000}) {
      const Values loss = rounded(random_values(n, 4), dtype);
      double sum = 2.5;
      for (const double v : loss) sum += v;
      const Tensor total = device_tensor({2.5}, {1}, Dtype::kFp64);
      add_loss(stream(), total, device_tensor(loss, {n}, dtype));
      EXPECT_NEAR(values_of(total)[0], sum, 1e-10) << n;
    }
  }
  // 2^24 + 1 is no fp32 number: the sum is not formed there.
  const Tensor total = device_tensor({0}, {1}, Dtype::kFp64);
  add_loss(stream(), total, device_tensor({16777216, 1}, {2}, Dtype::kFp32));
  EXPECT_EQ(values_of(total)[0], 16777217);
}

TEST(CrossEntropyKernel, RepeatsBitwise) {
  expect_repeatable([] {
    const Tensor x = device_tensor(random_values(31 * 333, 5), {31, 333}, Dtype::kFp32), loss = poisoned({31}, Dtype::kFp32);
    cross_entropy(stream(), x, loss, ints(Ints(31, 7)), 0.1);
    return x;
  });
  expect_repeatable([] {
    const Tensor total = device_tensor({1}, {1}, Dtype::kFp64);
    add_loss(stream(), total, device_tensor(random_values(5000, 6), {5000}, Dtype::kFp32));
    return total;
  });
}

TEST(CrossEntropyKernel, TakesNoRows) {
  const Tensor x = poisoned({0, 7}, Dtype::kFp32), loss = poisoned({0}, Dtype::kFp32);
  cross_entropy(stream(), x, loss, ints({}), 1);
  cross_entropy_loss(stream(), loss, x, ints({}));
  cross_entropy_unfused(stream(), x, x, loss, x, ints({}), 1);
  EXPECT_TRUE(values_of(loss).empty());
}

TEST(CrossEntropyKernel, WrongShapesAndDtypesAreRefused) {
  const Tensor x = poisoned({2, 3}, Dtype::kBf16), loss = poisoned({2}, Dtype::kFp32), labels = ints({0, 1}),
               total = poisoned({1}, Dtype::kFp64);
  EXPECT_THROW(cross_entropy(stream(), x, poisoned({3}, Dtype::kFp32), labels, 1), std::logic_error);
  EXPECT_THROW(cross_entropy(stream(), x, poisoned({2}, Dtype::kBf16), labels, 1), std::logic_error);
  EXPECT_THROW(cross_entropy(stream(), x, loss, ints({0}), 1), std::logic_error);
  EXPECT_THROW(cross_entropy(stream(), x, loss, loss, 1), std::logic_error);
  EXPECT_THROW(cross_entropy(stream(), poisoned({2, 5}, Dtype::kBf16).columns(0, 3), loss, labels, 1), std::logic_error);
  EXPECT_THROW(cross_entropy_loss(stream(), poisoned({1}, Dtype::kFp32), x, labels), std::logic_error);
  EXPECT_THROW(cross_entropy_unfused(stream(), poisoned({2, 2}, Dtype::kBf16), x, loss, x, labels, 1), std::logic_error);
  EXPECT_THROW(add_loss(stream(), loss, loss), std::logic_error);
  EXPECT_THROW(add_loss(stream(), total, x), std::logic_error);
}

}  // namespace
}  // namespace ref5d::testing
