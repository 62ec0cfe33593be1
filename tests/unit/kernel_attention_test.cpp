// Attention forward, flash and naive, against a plain double reference. The gradients: kernel_attention_backward_test.cpp.
#include "common/device/error.h"
#include "tests/support/attention_testing.h"

namespace ref5d::of_attention {
namespace {

using namespace ref5d::testing;

const std::vector<std::pair<std::int64_t, std::int64_t>> kHeads = {{1, 1}, {4, 2}, {6, 2}, {8, 1}, {9, 3}};
const std::vector<std::int64_t> kHeadDims = {1, 3, 8, 16, 20, 32, 64, 80, 128, 256};
const std::vector<std::int64_t> kLengths = {1, 2, 15, 16, 17, 31, 33, 63, 64, 65, 97, 130};

// Equal where either is infinite; the others' relative error.
double lse_error(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return INFINITY;
  std::vector<double> x, y;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::isinf(a[i]) || std::isinf(b[i])) {
      if (a[i] != b[i]) return INFINITY;
      continue;
    }
    x.push_back(a[i]), y.push_back(b[i]);
  }
  return relative_error(x, y);
}

double allowed(Dtype out) { return out == Dtype::kFp64 ? 1e-13 : out == Dtype::kFp32 ? 2e-6 : 4e-3; }

void expect_forward(const AttentionCase& original, const AttentionRun& run) {
  const AttentionCase c = original.in(run.dtype);
  const AttentionResult expected = reference_attention(c), got = run_attention(c, run);
  SCOPED_TRACE(c.name() + " " + dtype_name(run.dtype) + (run.kind == AttentionKind::kNaive ? " naive" : " flash"));
  EXPECT_LT(relative_error(got.o, expected.o), allowed(run.wide ? accumulator_of(run.dtype) : run.dtype));
  EXPECT_LT(lse_error(got.lse, expected.lse), allowed(accumulator_of(run.dtype)));
}

TEST(Attention, ForwardMatchesTheDefinitionForEveryHeadDimAndLayout) {
  unsigned n = 0;
  for (std::int64_t head_dim : kHeadDims) {
    for (int layout = 0; layout < static_cast<int>(Layout::kCount); ++layout, ++n) {
      const auto [heads, kv_heads] = kHeads[n % 5];
      const std::int64_t q_len = std::min<std::int64_t>(kLengths[n * 5 % 12], head_dim > 64 ? 65 : 130);
      const std::int64_t k_len = layout == 0 ? q_len : std::min<std::int64_t>(kLengths[n * 7 % 12], head_dim > 64 ? 65 : 130);
      const auto c = make_case(static_cast<Layout>(layout), 1 + n % 3, q_len, k_len, heads, kv_heads, head_dim, n + 1);
      const Dtype dtype = n % 3 == 0 ? Dtype::kFp64 : n % 3 == 1 ? Dtype::kFp32 : Dtype::kBf16;
      const AttentionRun run{dtype, AttentionKind::kFlash, n % 2 == 0, n % 5, n % 4};
      expect_forward(c, run);
      AttentionRun naive = run;
      naive.kind = AttentionKind::kNaive;
      if (n % 4 == 0) expect_forward(c, naive);
    }
  }
}

TEST(Attention, ForwardMatchesTheDefinitionForEveryLengthAroundATile) {
  for (std::int64_t q_len : {1, 15, 16, 17, 63, 64, 65, 128, 129})
    for (std::int64_t k_len : {1, 16, 33, 64, 65, 129}) {
      expect_forward(make_case(Layout::kCausal, 1, q_len, k_len, 2, 1, 8), {Dtype::kFp32});
      expect_forward(make_case(Layout::kShuffled, 1, q_len, k_len, 2, 1, 8), {Dtype::kFp64});
    }
}

TEST(Attention, EveryPairVisibleNeedsNoMask) {  // the keys of an earlier chunk: tiles are left unmasked
  for (std::int64_t k_len : {64, 70, 144}) {
    AttentionCase c = make_case(Layout::kCausal, 2, 80, k_len, 2, 1, 16);
    for (auto& order : c.q_order) order += 1000;
    expect_forward(c, {Dtype::kFp64});
  }
}

TEST(Attention, RunTablesHoldLeastAndGreatest) {
  const AttentionCase c = make_case(Layout::kShuffled, 3, 37, 50, 1, 1, 1);
  const AttentionTokens tokens = tokens_of(c);
  const auto q_runs = values_of(tokens.q_runs), k_runs = values_of(tokens.k_runs);
  ASSERT_EQ(tokens.q_runs.shape(), (Shape{3, 3, 4}));
  ASSERT_EQ(tokens.k_runs.shape(), (Shape{3, 4, 2}));
  auto expect_run = [](const std::vector<std::int32_t>& values, std::int64_t length, std::int64_t i, std::int64_t runs,
                       double least, double greatest) {
    const auto row = values.begin() + i / runs * length, begin = row + i % runs * 16,
               end = row + std::min<std::int64_t>(length, i % runs * 16 + 16);
    EXPECT_EQ(least, *std::min_element(begin, end)) << i;
    EXPECT_EQ(greatest, *std::max_element(begin, end)) << i;
  };
  for (std::int64_t i = 0; i < 9; ++i) {
    const auto at = static_cast<std::size_t>(i * 4);
    expect_run(c.q_order, 37, i, 3, q_runs[at], q_runs[at + 1]);
    expect_run(c.q_start, 37, i, 3, q_runs[at + 2], q_runs[at + 3]);
  }
  for (std::int64_t i = 0; i < 12; ++i)
    expect_run(c.k_order, 50, i, 4, k_runs[static_cast<std::size_t>(i * 2)], k_runs[static_cast<std::size_t>(i * 2 + 1)]);
}

TEST(Attention, TilesWithNothingVisibleAreNotRead) {
  AttentionCase c = make_case(Layout::kCausal, 1, 64, 192, 2, 1, 32);
  for (bool later : {false, true}) {  // the keys that the queries do not see are of earlier documents, or later in their own
    const std::int32_t seen = later ? 0 : 128;
    for (std::int32_t i = 0; i < 64; ++i) {
      c.q_order[static_cast<std::size_t>(i)] = seen + i;
      c.q_start[static_cast<std::size_t>(i)] = seen;
    }
    c.k = c.v = std::vector<double>(c.k.size(), std::nan(""));
    const auto values = random_values(64 * 32, 7);
    std::copy(values.begin(), values.end(), c.k.begin() + seen * 32);
    std::copy(values.begin(), values.end(), c.v.begin() + seen * 32);
    const AttentionResult r = run_attention(c, {Dtype::kFp32});
    for (const auto* result : {&r.o, &r.lse, &r.dq, &r.dk, &r.dv})
      for (double x : *result) ASSERT_TRUE(std::isfinite(x));
  }
}

// A query that sees no key: o = 0, lse = -inf, and never a NaN, beside queries that do see keys.
TEST(Attention, P32_FullyMaskedRows) {
  for (auto kind : {AttentionKind::kFlash, AttentionKind::kNaive})
    for (auto dtype : {Dtype::kFp64, Dtype::kFp32, Dtype::kBf16})
      for (auto layout : {Layout::kNothingVisible, Layout::kSomeSeeNothing}) {
        const AttentionCase c = make_case(layout, 2, 70, 70, 4, 2, 16);
        const AttentionResult r = run_attention(c, {dtype, kind});
        std::int64_t masked = 0;
        for (std::int64_t b = 0; b < 2; ++b)
          for (std::int64_t i = 0; i < 70; ++i) {
            bool any = false;
            for (std::int64_t j = 0; j < 70; ++j) any |= c.sees(b, i, j);
            if (any) continue;
            ++masked;
            for (std::int64_t h = 0; h < 4; ++h)
              ASSERT_EQ(r.lse[static_cast<std::size_t>((b * 4 + h) * 70 + i)], kMinusInfinity);
            for (std::int64_t d = 0; d < 64; ++d) {
              ASSERT_EQ(r.o[static_cast<std::size_t>((b * 70 + i) * 64 + d)], 0.0);
              ASSERT_EQ(r.dq[static_cast<std::size_t>((b * 70 + i) * 64 + d)], 0.0);
            }
          }
        EXPECT_GE(masked, layout == Layout::kNothingVisible ? 140 : 60);
        for (const auto* values : {&r.o, &r.dq, &r.dk, &r.dv})
          for (double x : *values) ASSERT_TRUE(std::isfinite(x));
      }
}

// Chunks of the keys, merged by their log-sum-exps, are the whole; a chunk that a query sees nothing of changes nothing.
TEST(Attention, P32_MergeOfChunksIsTheWhole) {
  for (auto dtype : {Dtype::kFp64, Dtype::kBf16}) {
    const AttentionCase c = make_case(Layout::kDocuments, 1, 96, 96, 4, 2, 20).in(dtype);
    const AttentionResult expected = reference_attention(c);
    std::vector<double> o(c.q.size(), 0.0), lse(4 * 96, kMinusInfinity);
    for (std::int64_t first : {32, 64, 0}) {  // a ring starts anywhere
      AttentionCase chunk = c;
      chunk.k_len = 32;
      chunk.k_order = {c.k_order.begin() + first, c.k_order.begin() + first + 32};
      chunk.k = {c.k.begin() + first * 40, c.k.begin() + (first + 32) * 40};
      chunk.v = {c.v.begin() + first * 40, c.v.begin() + (first + 32) * 40};
      AttentionRun run{dtype};
      run.wide = true;
      const AttentionResult part = run_attention(chunk, run);
      for (std::int64_t h = 0; h < 4; ++h)
        for (std::int64_t i = 0; i < 96; ++i) {
          const auto at = static_cast<std::size_t>(h * 96 + i);
          const double a = lse[at], b = part.lse[at], top = std::max(a, b);
          if (b == kMinusInfinity) continue;
          const double merged = top + std::log(std::exp(a - top) + std::exp(b - top));
          for (std::int64_t d = 0; d < 20; ++d) {
            const auto element = static_cast<std::size_t>((i * 4 + h) * 20 + d);
            o[element] = o[element] * std::exp(a - merged) + part.o[element] * std::exp(b - merged);
          }
          lse[at] = merged;
        }
    }
    EXPECT_LT(relative_error(o, expected.o), allowed(accumulator_of(dtype)));
    EXPECT_LT(lse_error(lse, expected.lse), allowed(accumulator_of(dtype)));
  }
}

// Logits of -6e4 and 6e4 (beyond what fp16 holds, and what some use as -inf) are logits like any other.
TEST(Attention, P32_HugeLogits) {
  for (auto kind : {AttentionKind::kFlash, AttentionKind::kNaive})
    for (auto dtype : {Dtype::kFp64, Dtype::kFp32, Dtype::kBf16})
      for (std::size_t period : {1u, 2u, 100u}) {  // every key -6e4, every second, only the first
        AttentionCase c = make_case(Layout::kCausal, 1, 100, 100, 2, 1, 16);
        std::fill(c.q.begin(), c.q.end(), 0.0);
        std::fill(c.k.begin(), c.k.end(), 0.0);
        for (std::size_t i = 0; i < c.q.size(); i += 16) c.q[i] = 256;
        for (std::size_t j = 0; j < 100; ++j) c.k[j * 16] = (j % period == 0 ? -6e4 : 6e4) * 4 / 256;  // the scale is 1/4
        c = c.in(dtype);
        AttentionRun run{dtype, kind};
        run.wide = true;
        const AttentionResult expected = reference_attention(c), r = run_attention(c, run);
        EXPECT_LT(relative_error(r.o, expected.o), allowed(accumulator_of(dtype)));
        EXPECT_LT(lse_error(r.lse, expected.lse), 1e-6);
        // fp32 holds an lse of 6e4 to 0.002, so p = exp(score - lse) is that good in backward.
        EXPECT_LT(relative_error(r.dv, expected.dv), dtype == Dtype::kFp64 ? 1e-10 : 4e-3);
        for (const auto* values : {&r.dq, &r.dk})
          for (double x : *values) ASSERT_TRUE(std::isfinite(x));
      }
}

// Backward computes the scores again, with a scale that is no power of two: had it rounded them otherwise than forward, p would
// be exp(an ulp of 10^4) and not 1.
TEST(Attention, BackwardRoundsHugeLogitsAsForwardDid) {
  for (auto kind : {AttentionKind::kFlash, AttentionKind::kNaive}) {
    AttentionCase c = make_case(Layout::kCausal, 1, 100, 100, 2, 1, 20);
    for (auto* values : {&c.q, &c.k})
      for (double& x : *values) x *= 100;
    c = c.in(Dtype::kFp32);
    const AttentionResult expected = reference_attention(c), r = run_attention(c, {Dtype::kFp32, kind});
    EXPECT_LT(relative_error(r.dv, expected.dv), 1e-5);
  }
}

TEST(Attention, FlashNeedsNoMemoryForScores) {
  const AttentionCase c = make_case(Layout::kCausal, 2, 64, 64, 4, 2, 8);
  MemoryLedger& memory = device().memory();
  auto peak = [&](AttentionKind kind) {
    memory.reset_peaks();
    const std::int64_t before = memory.current(MemoryCategory::kActivations);
    (void)run_attention(c, {Dtype::kFp32, kind});
    EXPECT_EQ(memory.current(MemoryCategory::kActivations), before);
    return memory.peak(MemoryCategory::kActivations) - before;
  };
  EXPECT_EQ(peak(AttentionKind::kFlash), 0);
  EXPECT_EQ(peak(AttentionKind::kNaive), 2 * (2 * 4 * 64 * 64 * 4));  // backward: probabilities and their gradients
}

TEST(Attention, VisiblePairsCountsThem) {
  for (int layout = 0; layout < static_cast<int>(Layout::kCount); ++layout) {
    const AttentionCase c = make_case(static_cast<Layout>(layout), 3, 33, 65, 1, 1, 1);
    std::int64_t expected = 0;
    for (std::int64_t b = 0; b < 3; ++b)
      for (std::int64_t i = 0; i < 33; ++i)
        for (std::int64_t j = 0; j < 65; ++j) expected += c.sees(b, i, j);
    EXPECT_EQ(visible_pairs(c.q_order, c.q_start, c.k_order, 3), expected);
  }
  std::vector<std::int32_t> order(8192), start(8192, 0);
  for (std::int32_t i = 0; i < 8192; ++i) order[static_cast<std::size_t>(i)] = i;
  EXPECT_EQ(visible_pairs(order, start, order, 1), 8192LL * 8193 / 2);
  EXPECT_EQ(visible_pairs({0, 1}, {2, 0}, {0, 1}, 1), 2);  // a start after the query sees nothing
  EXPECT_EQ(visible_pairs({}, {}, {}, 0), 0);
  EXPECT_THROW((void)visible_pairs({0, 1}, {0}, {0}, 1), std::logic_error);
  EXPECT_THROW((void)visible_pairs({0, 1, 2}, {0, 0, 0}, {0, 1}, 2), std::logic_error);
}

TEST(Attention, RefusesWhatItIsNotBuiltFor) {
  EXPECT_THROW((void)run_attention(make_case(Layout::kCausal, 1, 2, 2, 1, 1, 257), {Dtype::kFp32}), InputError);
  EXPECT_THROW((void)run_attention(make_case(Layout::kCausal, 1, 2, 2, 1, 1, 257), {Dtype::kFp32, AttentionKind::kNaive}),
               InputError);
  AttentionCase uneven = make_case(Layout::kCausal, 1, 2, 2, 3, 3, 4);
  uneven.kv_heads = 2;
  EXPECT_THROW((void)run_attention(uneven, {Dtype::kFp32}), std::logic_error);
  Stream& stream = device().compute();
  const AttentionCase c = make_case(Layout::kCausal, 1, 4, 4, 1, 1, 8);
  const AttentionTokens tokens = tokens_of(c);
  const Tensor x = poisoned({4, 8}, Dtype::kFp32), lse = poisoned({1, 1, 4}, Dtype::kFp32),
               wrong = poisoned({4, 8}, Dtype::kFp64);
  auto forward = [&](const Tensor& o, const Tensor& statistics, const Tensor& k) {
    attention_forward(stream, AttentionKind::kFlash, c.shape(), tokens, o, statistics, x, k, x);
  };
  EXPECT_THROW(forward(wrong, lse, x), std::logic_error);
  EXPECT_THROW(forward(x, lse, wrong), std::logic_error);
  EXPECT_THROW(forward(x, poisoned({1, 4}, Dtype::kFp32), x), std::logic_error);
  EXPECT_THROW(forward(x, lse, poisoned({5, 8}, Dtype::kFp32)), std::logic_error);
}

TEST(Attention, EmptySidesWork) {
  for (auto kind : {AttentionKind::kFlash, AttentionKind::kNaive})
    for (auto [q_len, k_len] : {std::pair{0, 5}, {5, 0}, {0, 0}}) {
      const AttentionResult r = run_attention(make_case(Layout::kCausal, 2, q_len, k_len, 2, 1, 8), {Dtype::kFp32, kind});
      for (const auto* values : {&r.o, &r.dq, &r.dk, &r.dv})
        for (double x : *values) EXPECT_EQ(x, 0.0);
      for (double x : r.lse) EXPECT_EQ(x, kMinusInfinity);
    }
}

}  // namespace
}  // namespace ref5d::of_attention
