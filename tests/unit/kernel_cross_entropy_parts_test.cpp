// The cross-entropy over parts of the vocabulary, reduced here as ranks would, against that of the whole.
#include <algorithm>
#include <limits>

#include "common/kernels/cross_entropy.h"
#include "common/kernels/cross_entropy_parts.h"
#include "tests/support/kernel_repeat.h"

namespace ref5d::of_cross_entropy_parts {
namespace {

using namespace ref5d::testing;
using Values = std::vector<double>;
using Widths = std::vector<std::int64_t>;  // columns of each part

struct Result {
  Values loss, dlogits;
};

Result whole(const Values& logits, const Ints& labels, double scale, Dtype dtype) {
  const auto rows = static_cast<std::int64_t>(labels.size());
  const Tensor x = device_tensor(logits, {rows, static_cast<std::int64_t>(logits.size()) / rows}, dtype),
               loss = poisoned({rows}, accumulator_of(dtype));
  cross_entropy(stream(), x, loss, ints(labels), scale);
  return {values_of(loss), values_of(x)};
}

// What one rank holds.
struct Part {
  std::int64_t first;
  Tensor logits;
};
std::vector<Part> cut(const Values& logits, std::int64_t rows, const Widths& widths, Dtype dtype) {
  std::vector<Part> parts;
  const std::int64_t vocab = static_cast<std::int64_t>(logits.size()) / rows;
  std::int64_t first = 0;
  for (const std::int64_t width : widths) {
    Values x;
    for (std::int64_t t = 0; t < rows; ++t)
      x.insert(x.end(), logits.begin() + t * vocab + first, logits.begin() + t * vocab + first + width);
    parts.push_back({first, device_tensor(x, {rows, width}, dtype)});
    first += width;
  }
  EXPECT_EQ(first, vocab) << "the cut is not of the whole vocabulary";
  return parts;
}

// The greatest of all parts, and the sums of all parts.
Tensor reduced_max(const std::vector<Part>& parts, std::int64_t rows, Dtype accumulator) {
  Values greatest(static_cast<std::size_t>(rows), -HUGE_VAL);
  for (const Part& part : parts) {
    const Tensor own = poisoned({rows}, accumulator);
    cross_entropy_part_max(stream(), own, part.logits);
    const Values values = values_of(own);
    for (std::size_t t = 0; t < values.size(); ++t) greatest[t] = std::max(greatest[t], values[t]);
  }
  return device_tensor(greatest, {rows}, accumulator);
}
Tensor reduced_sums(const std::vector<Part>& parts, const Tensor& greatest, const Ints& labels, std::int64_t vocab) {
  const Shape shape{2, greatest.dim(0)};
  Values sums(static_cast<std::size_t>(product(shape)), 0.0);
  for (const Part& part : parts) {
    const Tensor own = poisoned(shape, greatest.dtype());
    const auto before = bits_of(part.logits);
    cross_entropy_part_sums(stream(), own, part.logits, greatest, ints(labels), part.first, vocab);
    EXPECT_EQ(bits_of(part.logits), before) << "the logits changed";
    const Values values = values_of(own);
    for (std::size_t i = 0; i < values.size(); ++i) sums[i] += values[i];
  }
  return device_tensor(sums, shape, greatest.dtype());
}

Result by_parts(const Values& logits, const Ints& labels, double scale, Dtype dtype, const Widths& widths) {
  const auto rows = static_cast<std::int64_t>(labels.size()), vocab = static_cast<std::int64_t>(logits.size()) / rows;
  const std::vector<Part> parts = cut(logits, rows, widths, dtype);
  const Tensor greatest = reduced_max(parts, rows, accumulator_of(dtype)), sums = reduced_sums(parts, greatest, labels, vocab),
               first_loss = poisoned({rows}, accumulator_of(dtype));
  Result r{{}, Values(logits.size())};
  for (const Part& part : parts) {
    const Tensor loss = part.first == 0 ? first_loss : poisoned({rows}, accumulator_of(dtype));
    cross_entropy_from_parts(stream(), part.logits, loss, greatest, sums, ints(labels), part.first, vocab, scale);
    EXPECT_EQ(bits_of(loss), bits_of(first_loss)) << "two parts have different losses";
    const Values values = values_of(part.logits);
    const std::int64_t width = part.logits.dim(1);
    for (std::int64_t t = 0; t < rows; ++t)
      std::copy_n(values.begin() + t * width, width, r.dlogits.begin() + t * vocab + part.first);
  }
  r.loss = values_of(first_loss);
  return r;
}

// Cuts into 1 to 5 parts: nearly even, with a single column first, and with one last.
std::vector<Widths> cuts_of(std::int64_t vocab) {
  std::vector<Widths> cuts{{vocab}};
  for (std::int64_t parts = 2; parts <= 5; ++parts) {
    Widths even;
    for (std::int64_t i = 0; i < parts; ++i) even.push_back(vocab / parts + (i < vocab % parts));
    Widths single(static_cast<std::size_t>(parts), 1);
    single.back() = vocab - parts + 1;
    cuts.insert(cuts.end(), {even, single, {single.rbegin(), single.rend()}});
  }
  return cuts;
}

std::string name_of(const Widths& widths, Dtype dtype) {
  std::string name = dtype_name(dtype);
  for (const std::int64_t width : widths) name += " " + std::to_string(width);
  return name;
}

TEST(CrossEntropyPartsKernel, MatchTheWholeInEveryDtypeAndCut) {
  for (const Dtype dtype : kFloatDtypes)
    for (const std::int64_t vocab : {5, 37, 257}) {
      const auto v = static_cast<std::int32_t>(vocab);
      const Ints labels{0, v - 1, v / 2, kIgnoreLabel, v / 3, 1};
      const Values logits = rounded(random_values(6 * vocab, 1, 3), dtype);
      const Result expected = whole(logits, labels, 0.125, dtype);
      for (const Widths& widths : cuts_of(vocab)) {
        SCOPED_TRACE(name_of(widths, dtype));
        const Result r = by_parts(logits, labels, 0.125, dtype, widths);
        EXPECT_LT(relative_error(r.loss, expected.loss), tolerance(accumulator_of(dtype)));
        EXPECT_LT(relative_error(r.dlogits, expected.dlogits), tolerance(dtype));
        EXPECT_EQ(r.loss[3], 0);
      }
    }
}

TEST(CrossEntropyPartsKernel, StatisticsOfAPart) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const Dtype dtype : kFloatDtypes) {
    const Tensor x = device_tensor({1, 3, -infinity, -infinity, 2, 2, 5, 7}, {4, 2}, dtype);
    const Dtype accumulator = accumulator_of(dtype);
    const Tensor greatest = poisoned({4}, accumulator), sums = poisoned({2, 4}, accumulator);
    cross_entropy_part_max(stream(), greatest, x);
    EXPECT_EQ(values_of(greatest), (Values{3, -infinity, 2, 7}));
    // Columns 10 and 11 of 12; the greatest of all parts are others.
    cross_entropy_part_sums(stream(), sums, x, device_tensor({4, 0, 2, 7}, {4}, accumulator), ints({11, 9, kIgnoreLabel, 12}),
                            10, 12);
    const Values s = values_of(sums);
    EXPECT_NEAR(s[0], std::exp(-3) + std::exp(-1), 1e-7);
    EXPECT_EQ(s[1], 0);
    EXPECT_EQ(s[2], 0);
    EXPECT_NEAR(s[3], 1 + std::exp(-2), 1e-7);
    EXPECT_EQ(s[4], -1);
    EXPECT_EQ(s[5], 0);
    EXPECT_EQ(s[6], 0);
    EXPECT_TRUE(std::isnan(s[7]));
  }
}

TEST(CrossEntropyPartsKernel, P25_UniformLogitsGiveTheLogarithmOfTheVocabulary) {
  for (const Dtype dtype : kFloatDtypes)
    for (const std::int32_t label : {0, 2, 3, 4})
      EXPECT_NEAR(by_parts(Values(5, 0.0), {label}, 1, dtype, {3, 2}).loss[0], 1.609438, 1e-6);
}

TEST(CrossEntropyPartsKernel, P26_LargeLogitsNeitherOverflowNorLoseTheLoss) {
  const Values logits{1000, 999, 0, -1000, 998};  // 1000 and its neighbours are even apart in bf16, so only wider dtypes
  const double sum = 1 + std::exp(-1) + std::exp(-2);
  const Values dlogits{1 / sum, std::exp(-1) / sum - 1, 0, 0, std::exp(-2) / sum};
  for (const Dtype dtype : {Dtype::kFp64, Dtype::kFp32})
    for (std::int64_t at = 0; at <= 5; ++at) {  // the target's part has the greatest, or another has; one part may have nothing
      const Result r = by_parts(logits, {1}, 1, dtype, {at, 5 - at});
      EXPECT_NEAR(r.loss[0], 1.407606, 1e-6) << at;
      for (std::size_t i = 0; i < 5; ++i) EXPECT_NEAR(r.dlogits[i], dlogits[i], 1e-7) << at;
      // The label's probability is zero in any dtype; the loss is right all the same.
      EXPECT_NEAR(by_parts(logits, {3}, 1, dtype, {at, 5 - at}).loss[0], 2000.407606, 2e-4) << at;
    }
}

// A part whose exponentials are all 0 beside the greatest's; a part that is masked throughout; a label that is masked.
TEST(CrossEntropyPartsKernel, PartsFarBelowTheGreatestAndMaskedOnes) {
  const double infinity = std::numeric_limits<double>::infinity();
  const Values logits{64,        64,        -6e4,      -6e4,      -6e4,       //
                      -6e4,      -6e4,      6e4,       6e4,       6e4,        //
                      1,         2,         -infinity, -infinity, -infinity,  //
                      -infinity, -infinity, 3,         -infinity, 3,          //
                      -6e4,      -6e4,      -6e4,      -6e4,      -6e4};
  const Ints labels{3, 0, 0, 0, 4};
  for (const Dtype dtype : kFloatDtypes) {
    const Result expected = whole(logits, labels, 0.5, dtype);
    for (const Widths& widths : {Widths{2, 3}, {1, 1, 3}, {2, 2, 1}, {1, 1, 1, 1, 1}, {0, 2, 0, 3}}) {
      SCOPED_TRACE(name_of(widths, dtype));
      const Result r = by_parts(logits, labels, 0.5, dtype, widths);
      EXPECT_EQ(r.loss[3], infinity);
      for (std::size_t t : {0U, 1U, 2U, 4U}) EXPECT_NEAR(r.loss[t], expected.loss[t], 1e-6 * expected.loss[t]);
      EXPECT_LT(relative_error(r.dlogits, expected.dlogits), tolerance(dtype));
      EXPECT_EQ(r.dlogits[3], -0.5);
    }
  }
}

TEST(CrossEntropyPartsKernel, IgnoredRowsAreZeroWhateverTheirLogits) {
  const double nan = std::nan("");
  const Values logits{1, 2, 3, nan, HUGE_VAL, -HUGE_VAL, nan, nan, nan};
  for (const Dtype dtype : kFloatDtypes)
    for (const Widths& widths : {Widths{1, 2}, {2, 1}, {1, 1, 1}}) {
      const Result r = by_parts(logits, {0, kIgnoreLabel, kIgnoreLabel}, 2, dtype, widths);
      EXPECT_GT(r.loss[0], 2);
      EXPECT_EQ(Values(r.loss.begin() + 1, r.loss.end()), Values(2, 0.0));
      EXPECT_LT(r.dlogits[0], -1);
      EXPECT_EQ(Values(r.dlogits.begin() + 3, r.dlogits.end()), Values(6, 0.0));
    }
}

TEST(CrossEntropyPartsKernel, ALabelOutsideOfTheVocabularyShowsAsNanOnEveryPart) {
  const Values logits{1, 2, 3, 4, 5, 6};
  for (const std::int32_t label : {-1, -99, -101, 3, 4, 2147483647, -2147483647})
    for (const Widths& widths : {Widths{1, 2}, {2, 1}, {3}}) {
      const Result expected = whole({4, 5, 6}, {1}, 1, Dtype::kFp64), r = by_parts(logits, {label, 1}, 1, Dtype::kFp64, widths);
      EXPECT_TRUE(std::isnan(r.loss[0])) << label;
      EXPECT_NEAR(r.loss[1], expected.loss[0], 1e-14);
      for (std::size_t i = 0; i < 3; ++i) {
        EXPECT_TRUE(std::isnan(r.dlogits[i])) << label;
        EXPECT_NEAR(r.dlogits[3 + i], expected.dlogits[i], 1e-14);
      }
    }
}

// Also on the parts that do not have it.
TEST(CrossEntropyPartsKernel, ANanLogitShowsOnEveryPart) {
  for (const double bad : {std::nan(""), double(INFINITY)}) {
    const Result r = by_parts({1, bad, 3}, {0}, 1, Dtype::kFp32, {1, 1, 1});
    EXPECT_TRUE(std::isnan(r.loss[0]));
    for (const double d : r.dlogits) EXPECT_TRUE(std::isnan(d));
  }
}

TEST(CrossEntropyPartsKernel, RepeatsBitwise) {
  const Values logits = random_values(31 * 333, 5);
  const Tensor greatest = device_tensor(Values(31, 4.0), {31}, Dtype::kFp32), labels = ints(Ints(31, 107));
  expect_repeatable([&] {
    const Tensor sums = poisoned({2, 31}, Dtype::kFp32);
    cross_entropy_part_sums(stream(), sums, device_tensor(logits, {31, 333}, Dtype::kFp32), greatest, labels, 100, 500);
    return sums;
  });
  expect_repeatable([&] {
    const Tensor x = device_tensor(logits, {31, 333}, Dtype::kFp32), loss = poisoned({31}, Dtype::kFp32),
                 sums = device_tensor(Values(62, 1.5), {2, 31}, Dtype::kFp32);
    cross_entropy_from_parts(stream(), x, loss, greatest, sums, labels, 100, 500, 0.1);
    return x;
  });
}

TEST(CrossEntropyPartsKernel, TakesNoRows) {
  const Tensor x = poisoned({0, 7}, Dtype::kFp32), row = poisoned({0}, Dtype::kFp32), sums = poisoned({2, 0}, Dtype::kFp32);
  cross_entropy_part_max(stream(), row, x);
  cross_entropy_part_sums(stream(), sums, x, row, ints({}), 0, 7);
  cross_entropy_from_parts(stream(), x, row, row, sums, ints({}), 0, 7, 1);
  EXPECT_TRUE(values_of(row).empty());
}

TEST(CrossEntropyPartsKernel, WrongShapesDtypesAndPartsAreRefused) {
  const Tensor x = poisoned({2, 3}, Dtype::kBf16), row = poisoned({2}, Dtype::kFp32), sums = poisoned({2, 2}, Dtype::kFp32),
               narrow = poisoned({2}, Dtype::kBf16), labels = ints({0, 1});
  EXPECT_THROW(cross_entropy_part_max(stream(), narrow, x), std::logic_error);
  EXPECT_THROW(cross_entropy_part_max(stream(), row, poisoned({2, 5}, Dtype::kBf16).columns(0, 3)), std::logic_error);
  const auto part_sums = [&](const Tensor& to, const Tensor& greatest, const Tensor& which, std::int64_t first) {
    cross_entropy_part_sums(stream(), to, x, greatest, which, first, 8);
  };
  EXPECT_NO_THROW(part_sums(sums, row, labels, 5));
  EXPECT_THROW(part_sums(sums, row, labels, 6), std::logic_error);
  EXPECT_THROW(part_sums(sums, row, labels, -1), std::logic_error);
  EXPECT_THROW(part_sums(poisoned({2, 3}, Dtype::kFp32), row, labels, 0), std::logic_error);
  EXPECT_THROW(part_sums(sums, narrow, labels, 0), std::logic_error);
  EXPECT_THROW(part_sums(sums, row, row, 0), std::logic_error);
  EXPECT_THROW(cross_entropy_from_parts(stream(), x, narrow, row, sums, labels, 0, 8, 1), std::logic_error);
  EXPECT_THROW(cross_entropy_from_parts(stream(), x, row, row, row, labels, 0, 8, 1), std::logic_error);
  EXPECT_THROW(cross_entropy_from_parts(stream(), x, row, row, sums, ints({0}), 0, 8, 1), std::logic_error);
  EXPECT_THROW(cross_entropy_from_parts(stream(), x, row, row, sums, labels, 6, 8, 1), std::logic_error);
}

}  // namespace
}  // namespace ref5d::of_cross_entropy_parts
