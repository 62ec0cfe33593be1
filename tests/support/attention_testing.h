// Help for testing attention: cases with awkward sizes and orders, and a plain double reference.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/kernels/attention.h"
#include "tests/support/kernel_testing.h"

namespace ref5d::testing {

inline constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

struct AttentionCase {
  std::int64_t batch, q_len, k_len, heads, kv_heads, head_dim;
  std::vector<std::int32_t> q_order, q_start, k_order;
  std::vector<double> q, k, v, dout;
  std::int64_t group = 0, head_offset = 0;
  [[nodiscard]] double scale() const { return 1 / std::sqrt(static_cast<double>(head_dim)); }
  [[nodiscard]] AttentionShape shape() const {
    return {batch, q_len, k_len, heads, kv_heads, head_dim, scale(), group, head_offset};
  }
  [[nodiscard]] std::int64_t kv_head_of(std::int64_t head) const {
    return (head + head_offset) / (group ? group : heads / kv_heads);
  }
  [[nodiscard]] std::string name() const {
    std::string s;
    for (std::int64_t n : {batch, q_len, k_len, heads, kv_heads, head_dim}) s += (s.empty() ? "" : "x") + std::to_string(n);
    return s;
  }
  [[nodiscard]] bool sees(std::int64_t b, std::int64_t i, std::int64_t j) const {
    const auto query = static_cast<std::size_t>(b * q_len + i), key = static_cast<std::size_t>(b * k_len + j);
    return q_start[query] <= k_order[key] && k_order[key] <= q_order[query];
  }
  // What a dtype makes of the inputs.
  [[nodiscard]] AttentionCase in(Dtype dtype) const {
    AttentionCase c = *this;
    for (auto* values : {&c.q, &c.k, &c.v, &c.dout}) *values = rounded(*values, dtype);
    return c;
  }
};

// How tokens lie: in order; in order with documents; a zig-zag shard (the first and the last quarter of a sequence); shuffled
// with documents; keys that are all later than any query; keys of which some queries see none.
enum class Layout { kCausal, kDocuments, kZigZag, kShuffled, kNothingVisible, kSomeSeeNothing, kCount };

inline AttentionCase make_case(Layout layout, std::int64_t batch, std::int64_t q_len, std::int64_t k_len, std::int64_t heads,
                               std::int64_t kv_heads, std::int64_t head_dim, unsigned seed = 1) {
  AttentionCase c{batch, q_len, k_len, heads, kv_heads, head_dim, {}, {}, {}, {}, {}, {}, {}};
  std::mt19937 generator(seed);
  const auto span = static_cast<std::int32_t>(std::max(q_len, k_len));
  for (std::int64_t b = 0; b < batch; ++b) {
    auto orders = [&](std::int64_t n) {
      std::vector<std::int32_t> all(static_cast<std::size_t>(span));
      for (std::int32_t i = 0; i < span; ++i) all[static_cast<std::size_t>(i)] = i;
      if (layout == Layout::kZigZag)
        for (auto& i : all) i = i < span / 2 ? i : i + span;  // of 2 * span tokens
      if (layout == Layout::kShuffled) std::shuffle(all.begin(), all.end(), generator);
      all.resize(static_cast<std::size_t>(n));
      return all;
    };
    const auto queries = orders(q_len);
    auto keys = layout == Layout::kShuffled || q_len != k_len ? orders(k_len) : queries;
    const std::int32_t document = layout == Layout::kDocuments        ? 7 + static_cast<std::int32_t>(b)
                                  : layout == Layout::kShuffled       ? 40
                                  : layout == Layout::kSomeSeeNothing ? 11
                                                                      : 1 << 20;
    for (auto& key : keys) {
      if (layout == Layout::kNothingVisible) key += 3 * span;
      if (layout == Layout::kSomeSeeNothing && key / 11 % 2 == 0) key += 3 * span;  // every other document has no keys
    }
    for (auto order : queries) {
      c.q_order.push_back(order);
      c.q_start.push_back(order / document * document);
    }
    c.k_order.insert(c.k_order.end(), keys.begin(), keys.end());
  }
  c.q = random_values(batch * q_len * heads * head_dim, seed + 1);
  c.k = random_values(batch * k_len * kv_heads * head_dim, seed + 2);
  c.v = random_values(batch * k_len * kv_heads * head_dim, seed + 3);
  c.dout = random_values(batch * q_len * heads * head_dim, seed + 4);
  return c;
}

struct AttentionResult {
  std::vector<double> o, lse, delta, dq, dk, dv;
};

// By the definition, one query of one head at a time. With `whole`, gradients use its lse and delta.
inline AttentionResult reference_attention(const AttentionCase& c, const AttentionResult* whole = nullptr) {
  AttentionResult r;
  r.o.resize(c.q.size()), r.dq.resize(c.q.size()), r.dk.resize(c.k.size()), r.dv.resize(c.k.size());
  const std::int64_t D = c.head_dim;
  for (std::int64_t b = 0; b < c.batch; ++b)
    for (std::int64_t h = 0; h < c.heads; ++h)
      for (std::int64_t i = 0; i < c.q_len; ++i) {
        const std::int64_t at = ((b * c.q_len + i) * c.heads + h) * D, kv_head = c.kv_head_of(h);
        auto key_at = [&](std::int64_t j) { return ((b * c.k_len + j) * c.kv_heads + kv_head) * D; };
        auto dot = [&](const double* x, const double* y) {
          double sum = 0;
          for (std::int64_t d = 0; d < D; ++d) sum += x[d] * y[d];
          return sum;
        };
        std::vector<double> score(static_cast<std::size_t>(c.k_len), kMinusInfinity);
        double top = kMinusInfinity, sum = 0, delta = 0;
        for (std::int64_t j = 0; j < c.k_len; ++j) {
          if (c.sees(b, i, j)) score[static_cast<std::size_t>(j)] = c.scale() * dot(&c.q[at], &c.k[key_at(j)]);
          top = std::max(top, score[static_cast<std::size_t>(j)]);
        }
        for (double s : score) sum += s == kMinusInfinity ? 0 : std::exp(s - top);
        const double own = sum == 0 ? kMinusInfinity : top + std::log(sum);
        r.lse.push_back(own);
        for (std::int64_t j = 0; j < c.k_len; ++j)
          for (std::int64_t d = 0; c.sees(b, i, j) && d < D; ++d)
            r.o[at + d] += std::exp(score[static_cast<std::size_t>(j)] - top) / sum * c.v[key_at(j) + d];
        delta = dot(&c.dout[at], &r.o[at]);
        r.delta.push_back(delta);
        const double lse = whole ? whole->lse[r.lse.size() - 1] : own;
        if (whole) delta = whole->delta[r.lse.size() - 1];
        for (std::int64_t j = 0; j < c.k_len; ++j) {
          if (!c.sees(b, i, j)) continue;
          const double p = lse == kMinusInfinity ? 0 : std::exp(score[static_cast<std::size_t>(j)] - lse);
          const double ds = p * (dot(&c.dout[at], &c.v[key_at(j)]) - delta);
          for (std::int64_t d = 0; d < D; ++d) {
            r.dv[key_at(j) + d] += p * c.dout[at + d];
            r.dq[at + d] += c.scale() * ds * c.k[key_at(j) + d];
            r.dk[key_at(j) + d] += c.scale() * ds * c.q[at + d];
          }
        }
      }
  return r;
}

// How to run the kernels.
struct AttentionRun {
  Dtype dtype = Dtype::kFp64;
  AttentionKind kind = AttentionKind::kFlash;
  bool wide = false;                   // outputs in the accumulator's dtype
  std::int64_t before = 0, after = 0;  // columns beside each tensor in a larger matrix, filled with NaN
  double gradients = std::nan("");     // what the gradients hold beforehand
  bool accumulate = false;
};

// [rows, columns] as columns of a matrix that is NaN elsewhere.
struct PlacedTensor {
  Tensor whole, part;
  std::int64_t before, columns;
  // Nothing was written beside the part.
  void expect_rest_untouched() const {
    const std::vector<double> values = values_of(whole);
    std::int64_t touched = 0;
    for (std::int64_t i = 0; i < whole.numel(); ++i) {
      const std::int64_t c = i % whole.dim(1);
      touched += (c < before || c >= before + columns) && !std::isnan(values[static_cast<std::size_t>(i)]);
    }
    EXPECT_EQ(touched, 0) << "elements beside an output were written";
  }
};
inline PlacedTensor place(const std::vector<double>& values, std::int64_t rows, std::int64_t columns, const AttentionRun& run,
                          Dtype dtype) {
  const std::int64_t width = run.before + columns + run.after;
  std::vector<double> wide(static_cast<std::size_t>(rows * width), std::nan(""));
  for (std::int64_t r = 0; r < rows; ++r)
    std::copy_n(values.begin() + r * columns, columns, wide.begin() + r * width + run.before);
  const Tensor whole = device_tensor(wide, {rows, width}, dtype);
  return {whole, whole.columns(run.before, run.before + columns), run.before, columns};
}

inline AttentionTokens tokens_of(const AttentionCase& c) {
  return make_attention_tokens(device().compute(), device_ints(c.q_order, {c.batch, c.q_len}),
                               device_ints(c.q_start, {c.batch, c.q_len}), device_ints(c.k_order, {c.batch, c.k_len}));
}

// Forward, delta and backward on the device. With `whole`, backward uses its lse and delta.
inline AttentionResult run_attention(const AttentionCase& c, const AttentionRun& run, const AttentionResult* whole = nullptr) {
  Stream& stream = device().compute();
  const std::int64_t q_rows = c.batch * c.q_len, k_rows = c.batch * c.k_len, q_width = c.heads * c.head_dim,
                     k_width = c.kv_heads * c.head_dim;
  const Dtype accumulator = accumulator_of(run.dtype), out = run.wide ? accumulator : run.dtype;
  auto input = [&](const std::vector<double>& values, std::int64_t rows, std::int64_t width) {
    return place(values, rows, width, run, run.dtype).part;
  };
  const Tensor q = input(c.q, q_rows, q_width), k = input(c.k, k_rows, k_width), v = input(c.v, k_rows, k_width),
               dout = input(c.dout, q_rows, q_width);
  auto output = [&](std::int64_t rows, std::int64_t width, double value) {
    return place(std::vector<double>(static_cast<std::size_t>(rows * width), value), rows, width, run, out);
  };
  const PlacedTensor o = output(q_rows, q_width, std::nan("")), dq = output(q_rows, q_width, run.gradients),
                     dk = output(k_rows, k_width, run.gradients), dv = output(k_rows, k_width, run.gradients);
  const Shape statistics{c.batch, c.heads, c.q_len};
  Tensor lse = poisoned(statistics, accumulator), delta = poisoned(statistics, accumulator);
  const AttentionTokens tokens = tokens_of(c);
  attention_forward(stream, run.kind, c.shape(), tokens, o.part, lse, q, k, v);
  attention_delta(stream, c.shape(), delta, dout, o.part);
  AttentionResult r{values_of(o.part), values_of(lse), values_of(delta), {}, {}, {}};
  if (whole) {
    lse = device_tensor(whole->lse, statistics, accumulator);
    delta = device_tensor(whole->delta, statistics, accumulator);
  }
  attention_backward(stream, run.kind, c.shape(), tokens, dq.part, dk.part, dv.part, dout, q, k, v, lse, delta, run.accumulate);
  for (const PlacedTensor* t : {&o, &dq, &dk, &dv}) t->expect_rest_untouched();
  r.dq = values_of(dq.part), r.dk = values_of(dk.part), r.dv = values_of(dv.part);
  return r;
}

}  // namespace ref5d::testing
