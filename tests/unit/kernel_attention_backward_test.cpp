// Attention backward, flash and naive: against a plain double reference, finite differences, and by parts of a sequence.
#include "tests/support/attention_testing.h"

namespace ref5d::of_attention_backward {
namespace {

using namespace ref5d::testing;

const std::vector<std::pair<std::int64_t, std::int64_t>> kHeads = {{1, 1}, {4, 2}, {6, 2}, {8, 1}, {9, 3}};
const std::vector<std::int64_t> kHeadDims = {1, 3, 8, 16, 20, 32, 64, 80, 128, 256};
const std::vector<std::int64_t> kLengths = {1, 2, 15, 16, 17, 31, 33, 63, 64, 65, 97, 130};

double allowed(Dtype out) { return out == Dtype::kFp64 ? 1e-12 : out == Dtype::kFp32 ? 5e-6 : 1e-2; }

void expect_gradients(const AttentionResult& got, const AttentionResult& expected, double tolerance) {
  EXPECT_LT(relative_error(got.dv, expected.dv), tolerance);
  // Where queries see one key each, the gradients of q and k are 0 but for rounding: dv is the measure then.
  auto greatest = [](const std::vector<double>& v) {
    double most = 0;
    for (double x : v) most = std::max(most, std::isnan(x) ? INFINITY : std::abs(x));
    return most;
  };
  auto within = [&](const std::vector<double>& a, const std::vector<double>& b) {
    const double measure = greatest(expected.dv);
    return measure > 0 && greatest(b) < 1e-9 * measure ? greatest(a) / measure : relative_error(a, b);
  };
  EXPECT_LT(within(got.dq, expected.dq), tolerance);
  EXPECT_LT(within(got.dk, expected.dk), tolerance);
}

void expect_backward(const AttentionCase& original, const AttentionRun& run) {
  const AttentionCase c = original.in(run.dtype);
  SCOPED_TRACE(c.name() + " " + dtype_name(run.dtype) + (run.kind == AttentionKind::kNaive ? " naive" : " flash"));
  expect_gradients(run_attention(c, run), reference_attention(c), allowed(run.wide ? accumulator_of(run.dtype) : run.dtype));
}

TEST(AttentionBackward, MatchesTheDefinitionForEveryHeadDimAndLayout) {
  unsigned n = 0;
  for (std::int64_t head_dim : kHeadDims) {
    for (int layout = 0; layout < static_cast<int>(Layout::kCount); ++layout, ++n) {
      const auto [heads, kv_heads] = kHeads[n % 5];
      const std::int64_t q_len = std::min<std::int64_t>(kLengths[n * 5 % 12], head_dim > 64 ? 65 : 130);
      const std::int64_t k_len = layout == 0 ? q_len : std::min<std::int64_t>(kLengths[n * 7 % 12], head_dim > 64 ? 65 : 130);
      const auto c = make_case(static_cast<Layout>(layout), 1 + n % 3, q_len, k_len, heads, kv_heads, head_dim, n + 1);
      const Dtype dtype = n % 3 == 0 ? Dtype::kFp64 : n % 3 == 1 ? Dtype::kFp32 : Dtype::kBf16;
      const AttentionRun run{dtype, AttentionKind::kFlash, n % 2 == 0, n % 5, n % 4};
      expect_backward(c, run);
      AttentionRun naive = run;
      naive.kind = AttentionKind::kNaive;
      if (n % 4 == 0) expect_backward(c, naive);
    }
  }
}

// Zig-zag over two ranks: each has two of four chunks of 64 tokens. Of the two pairs of chunks at a hop that the mask empties
// nothing is computed: a NaN there, times a probability of 0, would show.
TEST(AttentionBackward, WorkThatAMaskEmptiesIsNotDone) {
  const auto chunks = [](std::int32_t first, std::int32_t second) {
    std::vector<std::int32_t> order;
    for (const std::int32_t chunk : {first, second})
      for (std::int32_t i = 0; i < 64; ++i) order.push_back(64 * chunk + i);
    return order;
  };
  for (const Dtype dtype : {Dtype::kFp64, Dtype::kFp32, Dtype::kBf16}) {
    for (const bool first_rank : {true, false}) {
      AttentionCase c = make_case(Layout::kCausal, 1, 128, 128, 4, 2, 16);
      c.q_order = first_rank ? chunks(0, 3) : chunks(1, 2);
      c.k_order = first_rank ? chunks(1, 2) : chunks(0, 3);
      const AttentionResult expected = reference_attention(c.in(dtype));
      // The first rank's early queries see nothing of these keys, and nobody sees its late keys.
      if (first_rank) {
        std::fill_n(c.q.begin(), c.q.size() / 2, std::nan(""));
        std::fill_n(c.dout.begin(), c.dout.size() / 2, std::nan(""));
      } else {
        std::fill(c.k.begin() + static_cast<std::ptrdiff_t>(c.k.size() / 2), c.k.end(), std::nan(""));
        std::fill(c.v.begin() + static_cast<std::ptrdiff_t>(c.v.size() / 2), c.v.end(), std::nan(""));
      }
      const AttentionResult got = run_attention(c, {dtype});
      EXPECT_LT(relative_error(got.o, expected.o), allowed(dtype)) << dtype_name(dtype) << first_rank;
      expect_gradients(got, expected, allowed(dtype));
    }
  }
}

TEST(AttentionBackward, MatchesTheDefinitionForEveryLengthAroundATile) {
  for (std::int64_t q_len : {15, 16, 17, 63, 64, 65, 128, 129})
    for (std::int64_t k_len : {16, 33, 64, 65, 129}) {
      expect_backward(make_case(Layout::kCausal, 1, q_len, k_len, 2, 1, 8), {Dtype::kFp32});
      expect_backward(make_case(Layout::kShuffled, 1, q_len, k_len, 2, 1, 8), {Dtype::kFp64});
    }
}

// grid.y and grid.z of a GPU end at 65535, and launch() refuses more everywhere.
TEST(AttentionBackward, ABatchMayHaveMoreSequencesThanAGridHasRows) {
  const AttentionCase c = make_case(Layout::kCausal, 65537, 1, 1, 1, 1, 1);
  for (AttentionKind kind : {AttentionKind::kFlash, AttentionKind::kNaive}) expect_backward(c, {Dtype::kFp64, kind});
}

TEST(AttentionBackward, EveryPairVisibleNeedsNoMask) {
  for (std::int64_t k_len : {64, 70, 144}) {
    AttentionCase c = make_case(Layout::kCausal, 2, 80, k_len, 2, 1, 16);
    for (auto& order : c.q_order) order += 1000;
    expect_backward(c, {Dtype::kFp64});
  }
}

// A probability of 1e-9 is none to leave out.
TEST(AttentionBackward, SmallProbabilitiesCount) {
  for (const AttentionKind kind : {AttentionKind::kFlash, AttentionKind::kNaive}) {
    AttentionCase c = make_case(Layout::kCausal, 1, 40, 40, 2, 1, 8);
    for (double& x : c.q) x *= 12;
    expect_backward(c, {Dtype::kFp64, kind});
  }
}

TEST(AttentionBackward, MatchesFiniteDifferences) {
  for (auto kind : {AttentionKind::kFlash, AttentionKind::kNaive}) {
    const AttentionCase c = make_case(Layout::kShuffled, 1, 5, 7, 4, 2, 3, 5);
    const AttentionResult r = run_attention(c, {Dtype::kFp64, kind});
    auto gradient_of = [&](std::vector<double> AttentionCase::*member) {
      return finite_difference(
          [&](const std::vector<double>& x) {
            AttentionCase moved = c;
            moved.*member = x;
            return run_attention(moved, {Dtype::kFp64, kind}).o;
          },
          c.*member, c.dout);
    };
    EXPECT_LT(relative_error(r.dq, gradient_of(&AttentionCase::q)), 1e-7);
    EXPECT_LT(relative_error(r.dk, gradient_of(&AttentionCase::k)), 1e-7);
    EXPECT_LT(relative_error(r.dv, gradient_of(&AttentionCase::v)), 1e-7);
  }
}

// The gradients of a pair of chunks, with the lse and delta of the whole attention, sum to those of the whole: dq over the
// chunks of keys, dk and dv over the chunks of queries. A chunk's own lse would be wrong.
TEST(AttentionBackward, P34_GradientsOfChunksSumToTheWhole) {
  for (auto kind : {AttentionKind::kFlash, AttentionKind::kNaive})
    for (auto dtype : {Dtype::kFp64, Dtype::kFp32, Dtype::kBf16}) {
      const std::int64_t kLen = 120, kChunk = 40, kHeadsTimesD = 4 * 20, kKvHeadsTimesD = 2 * 20;
      AttentionCase c = make_case(Layout::kDocuments, 1, kLen, kLen, 4, 2, 20).in(dtype);
      for (auto& start : c.q_start) start = start > 60 ? start : 0;  // one long document, then short ones
      const AttentionResult whole = reference_attention(c);
      AttentionResult sum;
      sum.dq.resize(c.q.size()), sum.dk.resize(c.k.size()), sum.dv.resize(c.k.size());
      for (std::int64_t qc = 0; qc < kLen; qc += kChunk)
        for (std::int64_t kc = 0; kc < kLen; kc += kChunk) {
          AttentionCase pair = c;
          pair.q_len = pair.k_len = kChunk;
          auto part = [&](auto& values, std::int64_t first, std::int64_t width) {
            values = {values.begin() + first * width, values.begin() + (first + kChunk) * width};
          };
          part(pair.q_order, qc, 1), part(pair.q_start, qc, 1), part(pair.k_order, kc, 1);
          part(pair.q, qc, kHeadsTimesD), part(pair.dout, qc, kHeadsTimesD);
          part(pair.k, kc, kKvHeadsTimesD), part(pair.v, kc, kKvHeadsTimesD);
          AttentionResult statistics;
          for (std::int64_t h = 0; h < 4; ++h)
            for (std::int64_t i = qc; i < qc + kChunk; ++i) {
              statistics.lse.push_back(whole.lse[static_cast<std::size_t>(h * kLen + i)]);
              statistics.delta.push_back(whole.delta[static_cast<std::size_t>(h * kLen + i)]);
            }
          AttentionRun run{dtype, kind};
          run.wide = true;
          const AttentionResult r = run_attention(pair, run, &statistics);
          auto add = [](std::vector<double>& to, const std::vector<double>& from, std::int64_t first) {
            for (std::size_t i = 0; i < from.size(); ++i) to[static_cast<std::size_t>(first) + i] += from[i];
          };
          add(sum.dq, r.dq, qc * kHeadsTimesD), add(sum.dk, r.dk, kc * kKvHeadsTimesD), add(sum.dv, r.dv, kc * kKvHeadsTimesD);
        }
      expect_gradients(sum, whole, allowed(accumulator_of(dtype)));
    }
}

// A query whose lse is -inf has no probabilities, whatever its scores.
TEST(AttentionBackward, P34_LseOfMinusInfinityGivesNoGradient) {
  for (auto kind : {AttentionKind::kFlash, AttentionKind::kNaive})
    for (auto dtype : {Dtype::kFp64, Dtype::kFp32}) {
      const AttentionCase c = make_case(Layout::kCausal, 1, 70, 70, 2, 1, 8).in(dtype);
      AttentionResult statistics = reference_attention(c);
      for (std::size_t i = 0; i < statistics.lse.size(); i += 3) statistics.lse[i] = kMinusInfinity;
      expect_gradients(run_attention(c, {dtype, kind}, &statistics), reference_attention(c, &statistics), allowed(dtype));
    }
}

TEST(AttentionBackward, AccumulateAdds) {
  for (auto kind : {AttentionKind::kFlash, AttentionKind::kNaive})
    for (bool wide : {false, true})
      for (auto dtype : {Dtype::kFp64, Dtype::kFp32, Dtype::kBf16}) {
        const AttentionCase c = make_case(Layout::kDocuments, 2, 65, 65, 4, 2, 20).in(dtype);
        AttentionRun run{dtype, kind, wide};
        run.gradients = 0.5;
        const AttentionResult overwritten = run_attention(c, run);
        run.accumulate = true;
        AttentionResult expected = reference_attention(c);
        for (auto* values : {&expected.dq, &expected.dk, &expected.dv})
          for (double& x : *values) x += 0.5;
        const double tolerance = allowed(wide ? accumulator_of(dtype) : dtype);
        expect_gradients(run_attention(c, run), expected, tolerance);
        for (auto* values : {&expected.dq, &expected.dk, &expected.dv})
          for (double& x : *values) x -= 0.5;
        expect_gradients(overwritten, expected, tolerance);
      }
}

// q, k, v as columns of one packed matrix, and their gradients as columns of another.
TEST(AttentionBackward, PackedColumns) {
  Stream& stream = device().compute();
  const std::int64_t kRows = 2 * 33, kWidth = 4 * 8, kKvWidth = 2 * 8;
  const AttentionCase c = make_case(Layout::kCausal, 2, 33, 33, 4, 2, 8);
  std::vector<double> packed(static_cast<std::size_t>(kRows * (kWidth + 2 * kKvWidth)));
  for (std::int64_t r = 0; r < kRows; ++r) {
    auto to = packed.begin() + r * (kWidth + 2 * kKvWidth);
    std::copy_n(c.q.begin() + r * kWidth, kWidth, to);
    std::copy_n(c.k.begin() + r * kKvWidth, kKvWidth, to + kWidth);
    std::copy_n(c.v.begin() + r * kKvWidth, kKvWidth, to + kWidth + kKvWidth);
  }
  const Shape shape{kRows, kWidth + 2 * kKvWidth};
  const Tensor qkv = device_tensor(packed, shape, Dtype::kFp64), dqkv = poisoned(shape, Dtype::kFp64);
  auto parts = [&](const Tensor& t) {
    return std::vector<Tensor>{t.columns(0, kWidth), t.columns(kWidth, kWidth + kKvWidth),
                               t.columns(kWidth + kKvWidth, kWidth + 2 * kKvWidth)};
  };
  const auto x = parts(qkv), dx = parts(dqkv);
  const Tensor o = poisoned({kRows, kWidth}, Dtype::kFp64), lse = poisoned({2, 4, 33}, Dtype::kFp64),
               delta = poisoned({2, 4, 33}, Dtype::kFp64), dout = device_tensor(c.dout, {kRows, kWidth}, Dtype::kFp64);
  const AttentionTokens tokens = tokens_of(c);
  attention_forward(stream, AttentionKind::kFlash, c.shape(), tokens, o, lse, x[0], x[1], x[2]);
  attention_delta(stream, c.shape(), delta, dout, o);
  attention_backward(stream, AttentionKind::kFlash, c.shape(), tokens, dx[0], dx[1], dx[2], dout, x[0], x[1], x[2], lse, delta,
                     false);
  const AttentionResult expected = reference_attention(c);
  EXPECT_LT(relative_error(values_of(delta), expected.delta), 1e-12);
  expect_gradients({{}, {}, {}, values_of(dx[0]), values_of(dx[1]), values_of(dx[2])}, expected, 1e-12);
}

TEST(AttentionBackward, RepeatsBitwiseWithAnyNumberOfThreads) {
  for (auto kind : {AttentionKind::kFlash, AttentionKind::kNaive})
    for (auto dtype : {Dtype::kFp64, Dtype::kFp32, Dtype::kBf16}) {
      const AttentionCase c = make_case(Layout::kDocuments, 2, 129, 129, 4, 2, 16);
      const AttentionResult first = run_attention(c, {dtype, kind});
      device().set_threads(2);
      const AttentionResult second = run_attention(c, {dtype, kind});
      device().set_threads(1);
      EXPECT_EQ(first.o, second.o);
      EXPECT_EQ(first.lse, second.lse);
      EXPECT_EQ(first.delta, second.delta);
      EXPECT_EQ(first.dq, second.dq);
      EXPECT_EQ(first.dk, second.dk);
      EXPECT_EQ(first.dv, second.dv);
    }
}

}  // namespace
}  // namespace ref5d::of_attention_backward
