// Attention over disjoint sets of keys, merged, against attention over all of them; and its backward by those sets.
#include <algorithm>
#include <functional>

#include "common/kernels/attention_merge.h"
#include "tests/support/attention_testing.h"
#include "tests/support/kernel_repeat.h"

namespace ref5d::of_attention_merge {
namespace {

using namespace ref5d::testing;
using Values = std::vector<double>;

const std::vector<Dtype> kAccumulators = {Dtype::kFp64, Dtype::kFp32};

// One rounding or a few of numbers up to about 1.
double rounding(Dtype dtype) { return dtype == Dtype::kFp64 ? 1e-15 : 3e-7; }

// The keys' part of a shape does not matter.
AttentionShape shape_of(std::int64_t batch, std::int64_t q_len, std::int64_t heads, std::int64_t head_dim) {
  return {batch, q_len, 0, heads, heads, head_dim, 1};
}

// For kernels' results over some keys, and for given ones.
struct Part {
  PlacedTensor o;
  Tensor lse;
};

Part part_of(const AttentionShape& s, const Values& o, const Values& lse, Dtype dtype, const AttentionRun& run = {}) {
  return {place(o, s.batch * s.q_len, s.heads * s.head_dim, run, dtype),
          device_tensor(lse, {s.batch, s.heads, s.q_len}, dtype)};
}
// One token of one head.
Part single(double o, double lse, Dtype dtype, std::int64_t head_dim = 1) {
  return part_of(shape_of(1, 1, 1, head_dim), Values(static_cast<std::size_t>(head_dim), o), {lse}, dtype);
}

void merge(const AttentionShape& s, const Part& to, const Part& from, bool without_maximum = false) {
  const auto o = bits_of(from.o.whole), lse = bits_of(from.lse);
  attention_merge(stream(), s, to.o.part, to.lse, from.o.part, from.lse, without_maximum);
  to.o.expect_rest_untouched();
  EXPECT_EQ(bits_of(from.o.whole), o) << "the part changed";
  EXPECT_EQ(bits_of(from.lse), lse) << "the part changed";
}

// The definition, in double.
struct Merged {
  Values o, lse;
};
Merged reference(const AttentionShape& s, const Values& o, const Values& lse, const Values& part_o, const Values& part_lse) {
  Merged r{o, lse};
  for (std::int64_t token = 0; token < s.batch * s.q_len; ++token)
    for (std::int64_t head = 0; head < s.heads; ++head) {
      const auto row = static_cast<std::size_t>((token / s.q_len * s.heads + head) * s.q_len + token % s.q_len);
      const double greatest = std::max(lse[row], part_lse[row]);
      r.lse[row] = greatest + std::log(std::exp(lse[row] - greatest) + std::exp(part_lse[row] - greatest));
      for (std::int64_t d = 0; d < s.head_dim; ++d) {
        const auto i = static_cast<std::size_t>((token * s.heads + head) * s.head_dim + d);
        r.o[i] = std::exp(lse[row] - r.lse[row]) * o[i] + std::exp(part_lse[row] - r.lse[row]) * part_o[i];
      }
    }
  return r;
}

double greatest_difference(const Values& a, const Values& b) {
  if (a.size() != b.size()) return INFINITY;
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i]) continue;  // infinite ones, too
    most = std::max(most, std::isfinite(a[i] - b[i]) ? std::abs(a[i] - b[i]) : INFINITY);
  }
  return most;
}

TEST(AttentionMergeKernel, FollowsTheFormulaForEverySizeInBothDtypes) {
  unsigned seed = 1;
  for (const Dtype dtype : kAccumulators)
    for (const std::int64_t head_dim : kAwkwardSizes) {
      const std::int64_t batch = 1 + seed % 3, q_len = kAwkwardSizes[seed * 5 % 9], heads = 1 + seed * 7 % 11;
      const AttentionShape s = shape_of(batch, q_len, heads, head_dim);
      const std::int64_t rows = batch * heads * q_len;
      const auto draw = [&](std::int64_t n, double scale) { return rounded(random_values(n, ++seed, scale), dtype); };
      const Values o = draw(rows * head_dim, 1), part_o = draw(rows * head_dim, 1), lse = draw(rows, 4),
                   part_lse = draw(rows, 4);
      AttentionRun run;
      run.before = seed % 5, run.after = seed % 4;
      const Part to = part_of(s, o, lse, dtype, run);
      run.before = seed % 3, run.after = seed % 7;
      merge(s, to, part_of(s, part_o, part_lse, dtype, run));
      const Merged expected = reference(s, o, lse, part_o, part_lse);
      SCOPED_TRACE(std::string(dtype_name(dtype)) + " " + std::to_string(head_dim));
      EXPECT_LT(relative_error(values_of(to.o.part), expected.o), rounding(dtype));
      EXPECT_LT(relative_error(values_of(to.lse), expected.lse), rounding(dtype));
      // The mistake is none where nothing overflows, but for the rounding of lse before it is an exponent again.
      const Part mistaken = part_of(s, o, lse, dtype);
      merge(s, mistaken, part_of(s, part_o, part_lse, dtype), true);
      EXPECT_LT(relative_error(values_of(mistaken.o.part), expected.o), 10 * rounding(dtype));
      EXPECT_LT(relative_error(values_of(mistaken.lse), expected.lse), 10 * rounding(dtype));
    }
}

// What has no keys holds NaN here, as a buffer may that nobody has written. The other one's bits stay, or are taken, also those
// of -0, of a NaN and of an lse that no exponential could pass through.
TEST(AttentionMergeKernel, P32_ASideWithoutKeysChangesNoBitOfTheOther) {
  for (const Dtype dtype : kAccumulators)
    for (const bool without_maximum : {false, true})
      for (const double lse : {0.1, -700.25, 6e4, -6e4, 1e30, -1e30, HUGE_VAL, std::nan("")}) {
        const AttentionShape s = shape_of(1, 1, 1, 3);
        const Values o{-0.0, 0.1, std::nan("")}, garbage(3, std::nan(""));
        const Part original = part_of(s, o, {lse}, dtype), kept = part_of(s, o, {lse}, dtype),
                   taken = part_of(s, garbage, {kMinusInfinity}, dtype);
        merge(s, kept, part_of(s, garbage, {kMinusInfinity}, dtype), without_maximum);
        merge(s, taken, original, without_maximum);
        for (const Part* got : {&kept, &taken}) {
          EXPECT_EQ(bits_of(got->o.part), bits_of(original.o.part)) << dtype_name(dtype) << " " << lse;
          EXPECT_EQ(bits_of(got->lse), bits_of(original.lse)) << dtype_name(dtype) << " " << lse;
        }
      }
}

TEST(AttentionMergeKernel, P32_WithoutAnyKeysTheResultIsZero) {
  for (const Dtype dtype : kAccumulators) {
    const Part to = single(std::nan(""), kMinusInfinity, dtype, 33);
    merge(shape_of(1, 1, 1, 33), to, single(HUGE_VAL, kMinusInfinity, dtype, 33));
    EXPECT_EQ(values_of(to.o.part), Values(33, 0.0));
    EXPECT_EQ(values_of(to.lse), Values(1, kMinusInfinity));
  }
}

// Beyond the range of an exponential a statistic is one like any other.
TEST(AttentionMergeKernel, P32_HugeStatistics) {
  const AttentionShape s = shape_of(1, 1, 1, 1);
  for (const Dtype dtype : kAccumulators)
    for (const double sign : {1.0, -1.0}) {
      const Part low = single(3, -6e4 * sign, dtype);  // the other one's share is exp(-12e4)
      merge(s, low, single(5, 6e4 * sign, dtype));
      EXPECT_EQ(values_of(low.o.part)[0], sign > 0 ? 5 : 3);
      EXPECT_EQ(values_of(low.lse)[0], 6e4);
      // Two alike: the mean, though fp32 rounds 6e4 + log 2 to a multiple of 0.004.
      const Part even = single(3, 6e4 * sign, dtype);
      merge(s, even, single(5, 6e4 * sign, dtype));
      EXPECT_EQ(values_of(even.o.part)[0], 4);
      EXPECT_NEAR(values_of(even.lse)[0], 6e4 * sign + std::log(2), dtype == Dtype::kFp64 ? 1e-11 : 0.002);
      const Part near = single(3, 6e4 * sign, dtype);
      merge(s, near, single(5, 6e4 * sign - 1, dtype));
      EXPECT_NEAR(values_of(near.o.part)[0], 3 + 2 / (std::exp(1) + 1), rounding(dtype) * 4);
    }
}

TEST(AttentionMergeKernel, WithoutTheMaximumLargeStatisticsOverflow) {
  const AttentionShape s = shape_of(1, 1, 1, 1);
  for (const Dtype dtype : kAccumulators) {
    const double large = dtype == Dtype::kFp64 ? 710 : 89;
    for (const bool without_maximum : {false, true}) {
      const Part to = single(3, large, dtype);
      merge(s, to, single(5, large - 1, dtype), without_maximum);
      if (without_maximum) {
        EXPECT_EQ(values_of(to.lse)[0], HUGE_VAL);
        EXPECT_EQ(values_of(to.o.part)[0], 0);
      } else {
        EXPECT_NEAR(values_of(to.lse)[0], large + std::log(1 + std::exp(-1)), large * rounding(dtype));
        EXPECT_NEAR(values_of(to.o.part)[0], 3 + 2 / (std::exp(1) + 1), rounding(dtype) * 4);
      }
    }
  }
}

TEST(AttentionMergeKernel, ANanShows) {
  for (const Dtype dtype : kAccumulators)
    for (const bool own : {false, true}) {
      const double nan = std::nan("");
      const Part to = single(1, own ? nan : 0, dtype), values = single(own ? nan : 1, 0, dtype);
      merge(shape_of(1, 1, 1, 1), to, single(1, own ? 0 : nan, dtype));
      merge(shape_of(1, 1, 1, 1), values, single(own ? 1 : nan, -80, dtype));
      EXPECT_TRUE(std::isnan(values_of(to.o.part)[0]));
      EXPECT_TRUE(std::isnan(values_of(to.lse)[0]));
      EXPECT_TRUE(std::isnan(values_of(values.o.part)[0]));  // its share is small, but not nothing
    }
}

// A case with some of its keys: of every sequence those at these places.
AttentionCase with_keys(const AttentionCase& c, const std::vector<std::int64_t>& places) {
  AttentionCase block = c;
  block.k_len = static_cast<std::int64_t>(places.size());
  block.k_order.clear(), block.k.clear(), block.v.clear();
  const std::int64_t width = c.kv_heads * c.head_dim;
  for (std::int64_t b = 0; b < c.batch; ++b)
    for (const std::int64_t place : places) {
      const std::int64_t key = b * c.k_len + place;
      block.k_order.push_back(c.k_order[static_cast<std::size_t>(key)]);
      block.k.insert(block.k.end(), c.k.begin() + key * width, c.k.begin() + (key + 1) * width);
      block.v.insert(block.v.end(), c.v.begin() + key * width, c.v.begin() + (key + 1) * width);
    }
  return block;
}

using Blocks = std::vector<std::vector<std::int64_t>>;
// Contiguous blocks, as even as may be, or every n-th key.
Blocks cut_keys(std::int64_t keys, std::int64_t n, bool interleaved) {
  Blocks blocks(static_cast<std::size_t>(n));
  for (std::int64_t key = 0; key < keys; ++key)
    blocks[static_cast<std::size_t>(interleaved ? key % n : key * n / keys)].push_back(key);
  return blocks;
}

struct Inputs {
  Tensor q, k, v, dout;
  AttentionTokens tokens;
};
Inputs inputs_of(const AttentionCase& c, Dtype dtype) {
  const Shape q{c.batch * c.q_len, c.heads * c.head_dim}, k{c.batch * c.k_len, c.kv_heads * c.head_dim};
  return {device_tensor(c.q, q, dtype), device_tensor(c.k, k, dtype), device_tensor(c.v, k, dtype),
          device_tensor(c.dout, q, dtype), tokens_of(c)};
}
// Beside o there are other columns.
Part forward(const AttentionCase& c, Dtype dtype, AttentionKind kind) {
  AttentionRun run;
  run.before = 2, run.after = 1;
  const Values o(c.q.size(), std::nan("")), lse(c.q.size() / static_cast<std::size_t>(c.head_dim), std::nan(""));
  const Part part = part_of(c.shape(), o, lse, accumulator_of(dtype), run);
  const Inputs in = inputs_of(c, dtype);
  attention_forward(stream(), kind, c.shape(), in.tokens, part.o.part, part.lse, in.q, in.k, in.v);
  return part;
}
std::vector<Part> forward_by(const Blocks& blocks, const AttentionCase& c, Dtype dtype, AttentionKind kind) {
  std::vector<Part> parts;
  for (const auto& block : blocks) parts.push_back(forward(with_keys(c, block), dtype, kind));
  return parts;
}
// Begins with nothing, as a ring does.
Part merged(const AttentionCase& c, const std::vector<Part>& parts) {
  AttentionRun run;
  run.after = 3;
  const Values nothing(c.q.size(), std::nan("")), no_keys(c.q.size() / static_cast<std::size_t>(c.head_dim), kMinusInfinity);
  const Part sum = part_of(c.shape(), nothing, no_keys, parts[0].lse.dtype(), run);
  for (const Part& part : parts) merge(c.shape(), sum, part);
  return sum;
}

// In documents, and where every other document has no keys, most blocks are invisible to most queries, all are to some.
const std::vector<AttentionCase>& cases() {
  static const std::vector<AttentionCase> kCases = {
      make_case(Layout::kCausal, 1, 40, 40, 4, 2, 8, 1),          make_case(Layout::kDocuments, 2, 37, 37, 4, 2, 5, 2),
      make_case(Layout::kZigZag, 2, 24, 24, 3, 1, 33, 3),         make_case(Layout::kShuffled, 2, 19, 43, 6, 3, 7, 4),
      make_case(Layout::kSomeSeeNothing, 1, 40, 40, 2, 2, 16, 5), make_case(Layout::kNothingVisible, 1, 9, 17, 2, 1, 3, 6)};
  return kCases;
}

TEST(AttentionMergeKernel, P32_BlocksOfTheKeysMergeToTheWholeInAnyOrder) {
  unsigned n = 0;
  for (const Dtype dtype : kFloatDtypes)
    for (const AttentionCase& original : cases()) {
      const AttentionCase c = original.in(dtype);
      const AttentionKind kind = ++n % 4 == 0 ? AttentionKind::kNaive : AttentionKind::kFlash;
      const Part whole = forward(c, dtype, kind);
      const double allowed = accumulator_of(dtype) == Dtype::kFp64 ? 1e-15 : 6e-7;
      for (const std::int64_t count : {2, 3, 8})
        for (const bool interleaved : {false, true}) {
          SCOPED_TRACE(c.name() + " " + dtype_name(dtype) + " in " + std::to_string(count) +
                       (interleaved ? " interleaved" : ""));
          std::vector<Part> parts = forward_by(cut_keys(c.k_len, count, interleaved), c, dtype, kind);
          const Part first = merged(c, parts);
          EXPECT_LT(relative_error(values_of(first.o.part), values_of(whole.o.part)), allowed);
          EXPECT_LT(greatest_difference(values_of(first.lse), values_of(whole.lse)), 4 * allowed);
          // As rank 1 of a ring gets them, and backwards.
          std::rotate(parts.begin(), parts.begin() + 1, parts.end());
          for (int again = 0; again < 2; ++again) {
            const Part other = merged(c, parts);
            EXPECT_LT(relative_error(values_of(other.o.part), values_of(first.o.part)), allowed);
            EXPECT_LT(greatest_difference(values_of(other.lse), values_of(first.lse)), 4 * allowed);
            std::reverse(parts.begin(), parts.end());
          }
        }
    }
}

struct Gradients {
  Values dq, dk, dv;
};
// dq adds up over the blocks; dk and dv are each block's own, put back in their places here. `lse_of` gives the lse that a
// block is differentiated with.
Gradients backward(const AttentionCase& c, const Blocks& blocks, Dtype dtype, AttentionKind kind, const Part& whole,
                   const std::function<Tensor(const AttentionCase&)>& lse_of) {
  const Dtype wide = accumulator_of(dtype);
  const Tensor dq = Tensor::zeros({c.batch * c.q_len, c.heads * c.head_dim}, wide, MemoryCategory::kWorkspace, stream()),
               delta = poisoned(whole.lse.shape(), wide);
  Gradients r{{}, Values(c.k.size()), Values(c.k.size())};
  const std::int64_t width = c.kv_heads * c.head_dim;
  for (const auto& places : blocks) {
    const AttentionCase block = with_keys(c, places);
    const Inputs in = inputs_of(block, dtype);
    attention_delta(stream(), c.shape(), delta, in.dout, whole.o.part);
    const Tensor dk = Tensor::zeros(in.k.shape(), wide, MemoryCategory::kWorkspace, stream()),
                 dv = Tensor::zeros(in.v.shape(), wide, MemoryCategory::kWorkspace, stream());
    attention_backward(stream(), kind, block.shape(), in.tokens, dq, dk, dv, in.dout, in.q, in.k, in.v, lse_of(block), delta,
                       true);
    const auto put_back = [&](Values& to, const Values& from) {
      for (std::int64_t b = 0, row = 0; b < c.batch; ++b)
        for (const std::int64_t place : places)
          std::copy_n(from.begin() + row++ * width, width, to.begin() + (b * c.k_len + place) * width);
    };
    put_back(r.dk, values_of(dk)), put_back(r.dv, values_of(dv));
  }
  r.dq = values_of(dq);
  return r;
}

// By the merged lse a block's probabilities are a share of the whole softmax; by its own they would add up to 1 in each block.
TEST(AttentionMergeKernel, P34_BackwardByBlocksNeedsTheMergedStatistics) {
  unsigned n = 0;
  for (const Dtype dtype : kFloatDtypes)
    for (std::size_t i = 0; i + 1 < cases().size(); ++i) {
      const AttentionCase c = cases()[i].in(dtype);
      const AttentionKind kind = ++n % 3 == 0 ? AttentionKind::kNaive : AttentionKind::kFlash;
      const bool interleaved = n % 2 == 0;
      const Blocks blocks = cut_keys(c.k_len, 3, interleaved), one = cut_keys(c.k_len, 1, false);
      const Part whole = forward(c, dtype, kind), sum = merged(c, forward_by(blocks, c, dtype, kind));
      const auto own_lse = [&](const AttentionCase& block) { return forward(block, dtype, kind).lse; };
      const Gradients expected = backward(c, one, dtype, kind, whole, [&](const AttentionCase&) { return whole.lse; }),
                      by_blocks = backward(c, blocks, dtype, kind, sum, [&](const AttentionCase&) { return sum.lse; }),
                      by_own = backward(c, blocks, dtype, kind, sum, own_lse);
      SCOPED_TRACE(c.name() + " " + dtype_name(dtype));
      const double allowed = accumulator_of(dtype) == Dtype::kFp64 ? 3e-15 : 1e-6;
      for (const auto member : {&Gradients::dq, &Gradients::dk, &Gradients::dv}) {
        EXPECT_LT(relative_error(by_blocks.*member, expected.*member), allowed);
        EXPECT_GT(relative_error(by_own.*member, expected.*member), 0.1);
      }
    }
}

TEST(AttentionMergeKernel, RepeatsBitwise) {
  const AttentionShape s = shape_of(2, 300, 5, 33);
  const std::int64_t rows = 2 * 300 * 5;
  for (const bool statistics : {false, true})
    expect_repeatable([&] {
      const Part to = part_of(s, random_values(rows * 33, 1), random_values(rows, 2), Dtype::kFp32);
      merge(s, to, part_of(s, random_values(rows * 33, 3), random_values(rows, 4), Dtype::kFp32));
      return statistics ? to.lse : to.o.part;
    });
}

// More statistics than one block of the CPU takes.
TEST(AttentionMergeKernel, EveryStatisticOfSeveralBlocksIsMerged) {
  const AttentionShape s = shape_of(1, kSeveralBlocks, 1, 1);
  const auto n = static_cast<std::size_t>(kSeveralBlocks);
  const Part to = part_of(s, Values(n, 2.0), Values(n, 1.0), Dtype::kFp64);
  merge(s, to, part_of(s, Values(n, 4.0), Values(n, 1.0), Dtype::kFp64));
  EXPECT_EQ(values_of(to.o.part), Values(n, 3.0));
  EXPECT_LT(greatest_difference(values_of(to.lse), Values(n, 1 + std::log(2))), 1e-15);
}

TEST(AttentionMergeKernel, TakesNoRows) {
  for (const AttentionShape& s : {shape_of(0, 3, 2, 4), shape_of(2, 0, 2, 4)}) {
    const Part none = part_of(s, {}, {}, Dtype::kFp32);
    attention_merge(stream(), s, none.o.part, none.lse, none.o.part, none.lse);
    EXPECT_TRUE(values_of(none.lse).empty());
  }
}

TEST(AttentionMergeKernel, WrongShapesAndDtypesAreRefused) {
  const AttentionShape s = shape_of(2, 3, 2, 4);
  const Tensor o = poisoned({6, 8}, Dtype::kFp32), part_o = poisoned({6, 8}, Dtype::kFp32),
               lse = poisoned({2, 2, 3}, Dtype::kFp32), part_lse = poisoned({2, 2, 3}, Dtype::kFp32);
  EXPECT_NO_THROW(attention_merge(stream(), s, o, lse, part_o, part_lse));
  for (const Tensor& wrong : {poisoned({6, 7}, Dtype::kFp32), poisoned({5, 8}, Dtype::kFp32), poisoned({6, 8}, Dtype::kFp64),
                              poisoned({6, 8}, Dtype::kBf16), device_ints(Ints(48, 0), {6, 8})}) {
    EXPECT_THROW(attention_merge(stream(), s, wrong, lse, part_o, part_lse), std::logic_error);
    EXPECT_THROW(attention_merge(stream(), s, o, lse, wrong, part_lse), std::logic_error);
  }
  for (const Tensor& wrong :
       {poisoned({2, 3, 2}, Dtype::kFp32), poisoned({2, 6}, Dtype::kFp32), poisoned({2, 2, 3}, Dtype::kFp64)}) {
    EXPECT_THROW(attention_merge(stream(), s, o, wrong, part_o, part_lse), std::logic_error);
    EXPECT_THROW(attention_merge(stream(), s, o, lse, part_o, wrong), std::logic_error);
  }
  const Tensor narrow = poisoned({6, 8}, Dtype::kBf16), narrow_lse = poisoned({2, 2, 3}, Dtype::kBf16);
  EXPECT_THROW(attention_merge(stream(), s, narrow, narrow_lse, narrow, narrow_lse), std::logic_error);
  EXPECT_THROW(attention_merge(stream(), s, narrow, lse, narrow, part_lse), std::logic_error);
}

}  // namespace
}  // namespace ref5d::of_attention_merge
