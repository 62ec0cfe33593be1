// Attention: the flash kernels in every size of tile that they are compiled for, the naive ones, and the merge of two results.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/device/device.h"
#include "common/kernels/attention.h"
#include "common/kernels/attention_merge.h"
#include "common/tools/kernel_inputs.h"

namespace ref5d {
namespace {

struct AttentionCaseSize {
  std::int64_t batch, q_len, k_len, heads, kv_heads, head_dim;
  std::int64_t document;  // tokens of one; 0: the whole sequence is one
  bool wide;              // outputs in the accumulator's dtype, gradients added to what is there
  std::int64_t group = 0, head_offset = 0;
  [[nodiscard]] std::string name() const {
    return fmt::format("{}x{}x{}x{}x{}x{}{}{}{}", batch, q_len, k_len, heads, kv_heads, head_dim, document ? "_documents" : "",
                       wide ? "_wide" : "", group ? fmt::format("_group{}+{}", group, head_offset) : "");
  }
  [[nodiscard]] AttentionShape shape() const {
    const double scale = 1 / std::sqrt(static_cast<double>(head_dim));
    return {batch, q_len, k_len, heads, kv_heads, head_dim, scale, group, head_offset};
  }
};

// Where the tokens of one sequence stand. Queries are its last ones, so that with fewer queries than keys each sees many.
struct Orders {
  std::vector<std::int32_t> q_order, q_start, k_order;

  explicit Orders(const AttentionCaseSize& z) {
    const auto q = static_cast<std::int32_t>(z.q_len), k = static_cast<std::int32_t>(z.k_len);
    const auto document = static_cast<std::int32_t>(z.document ? z.document : 1 << 20);
    for (std::int64_t b = 0; b < z.batch; ++b) {
      for (std::int32_t i = 0; i < q; ++i) {
        q_order.push_back(std::max(0, k - q) + i);
        q_start.push_back(q_order.back() / document * document);
      }
      // In a case of documents the keys of the second one stand beyond every query: its first queries see nothing.
      for (std::int32_t i = 0; i < k; ++i) k_order.push_back(i / document == 1 ? i + (1 << 16) : i);
    }
  }
  [[nodiscard]] bool sees_any(const AttentionCaseSize& z, std::int64_t b, std::int64_t i) const {
    const auto query = static_cast<std::size_t>(b * z.q_len + i);
    const auto first = k_order.begin() + static_cast<std::ptrdiff_t>(b * z.k_len);
    return std::any_of(first, first + static_cast<std::ptrdiff_t>(z.k_len),
                       [&](std::int32_t k) { return q_start[query] <= k && k <= q_order[query]; });
  }
};

// Backward takes the statistics of the whole attention, of which its keys may be a part, so any will do: near the
// logarithm of their number, -inf for a query that sees none.
Tensor given_lse(CaseInputs& in, const AttentionCaseSize& z, const Orders& orders) {
  std::vector<double> values;
  const double typical = std::min(7.0, 1 + static_cast<double>(z.k_len) / 32);
  for (std::int64_t b = 0; b < z.batch; ++b) {
    for (std::int64_t row = 0; row < z.heads * z.q_len; ++row) {
      const bool any = orders.sees_any(z, b, row % z.q_len);
      values.push_back(any ? typical : -std::numeric_limits<double>::infinity());
    }
  }
  return in.constants(values, {z.batch, z.heads, z.q_len}, in.accumulator());
}

AttentionTokens tokens_of(CaseInputs& in, const AttentionCaseSize& z, const Orders& orders) {
  const auto ints = [&](const std::vector<std::int32_t>& values, std::int64_t length) {
    return in.constants({values.begin(), values.end()}, {z.batch, length}, Dtype::kInt32);
  };
  return make_attention_tokens(device().compute(), ints(orders.q_order, z.q_len), ints(orders.q_start, z.q_len),
                               ints(orders.k_order, z.k_len));
}

struct AttentionTensors {
  Tensor q, k, v, dout, o, dq, dk, dv, lse, delta;
};

// q, k and v are columns of wider matrices, as in a packed projection.
AttentionTensors tensors_of(CaseInputs& in, const AttentionCaseSize& z) {
  const Shape q{z.batch * z.q_len, z.heads * z.head_dim}, k{z.batch * z.k_len, z.kv_heads * z.head_dim};
  const Shape statistics{z.batch, z.heads, z.q_len};
  const auto packed = [&](const Shape& shape) { return CaseInputs::inside(in.normal({shape[0], shape[1] + 5})); };
  const Dtype result = z.wide ? in.accumulator() : in.dtype();
  const auto gradient = [&](const Shape& shape) { return z.wide ? in.normal_in(result, shape) : in.target_in(result, shape); };
  return {packed(q),
          packed(k),
          packed(k),
          in.normal(q),
          in.target_in(result, q),
          gradient(q),
          gradient(k),
          gradient(k),
          in.target_in(in.accumulator(), statistics),
          in.target_in(in.accumulator(), statistics)};
}

PreparedCase attention(CaseInputs& in, AttentionKind kind, const AttentionCaseSize& z) {
  const Orders orders(z);
  const AttentionTokens tokens = tokens_of(in, z, orders);
  const AttentionTensors t = tensors_of(in, z);
  const Tensor lse = given_lse(in, z, orders), delta = in.normal_in(in.accumulator(), lse.shape());
  const Tensor o = in.normal_in(t.o.dtype(), t.q.shape());
  const AttentionShape shape = z.shape();
  const std::int64_t pairs = visible_pairs(orders.q_order, orders.q_start, orders.k_order, z.batch);
  PreparedCase c;
  c.step(
      "attention_forward", [=](Stream& s) { attention_forward(s, kind, shape, tokens, t.o, t.lse, t.q, t.k, t.v); },
      {t.q, t.k, t.v}, {t.o, t.lse}, static_cast<double>(attention_forward_flops(pairs, z.heads, z.head_dim)));
  c.step("attention_delta", [=](Stream& s) { attention_delta(s, shape, t.delta, t.dout, o); }, {t.dout, o}, {t.delta});
  c.step(
      "attention_backward",
      [=](Stream& s) {
        attention_backward(s, kind, shape, tokens, t.dq, t.dk, t.dv, t.dout, t.q, t.k, t.v, lse, delta, z.wide);
      },
      {t.dout, t.q, t.k, t.v, lse, delta}, {t.dq, t.dk, t.dv},
      static_cast<double>(attention_backward_flops(pairs, z.heads, z.head_dim)));
  c.output("o", t.o);
  c.output("lse", t.lse);
  c.output("delta", t.delta);
  c.output("dq", t.dq);
  c.output("dk", t.dk);
  c.output("dv", t.dv);
  return c;
}

// Statistics of both signs; in a small case every fifth query has no keys on one side, every seventh none on the other, and so
// every 35th none at all.
PreparedCase merge(CaseInputs& in, const AttentionCaseSize& z, bool large) {
  const Shape shape{z.batch * z.q_len, z.heads * z.head_dim}, statistics{z.batch, z.heads, z.q_len};
  const auto lse_without = [&](std::int64_t period) {
    std::vector<double> values;
    for (std::int64_t i = 0; i < product(statistics); ++i)
      values.push_back(!large && i % period == 0 ? -std::numeric_limits<double>::infinity()
                                                 : static_cast<double>(i * period % 11) - 5.5);
    return in.constants(values, statistics, in.dtype());
  };
  const auto packed = [&] { return CaseInputs::inside(in.normal({shape[0], shape[1] + 5})); };
  const Tensor o = packed(), part_o = packed(), lse = lse_without(5), part_lse = lse_without(7);
  const AttentionShape attention = z.shape();
  PreparedCase c;
  c.step("attention_merge", [=](Stream& s) { attention_merge(s, attention, o, lse, part_o, part_lse); },
         {o, lse, part_o, part_lse}, {o, lse});
  c.output("o", o);
  c.output("lse", lse);
  return c;
}

using Sizes = std::vector<AttentionCaseSize>;

void add(CaseList& list, AttentionKind kind, const std::vector<Dtype>& dtypes, const Sizes& sizes) {
  const std::string op = kind == AttentionKind::kFlash ? "attention/" : "attention_naive/";
  for (const AttentionCaseSize& z : sizes) {
    for (const Dtype dtype : dtypes)
      list.push_back({op + z.name(), dtype, false, [=](CaseInputs& in) { return attention(in, kind, z); }});
  }
}

// In accumulators' dtypes only.
void add_merges(CaseList& list, bool large, const Sizes& sizes) {
  for (const AttentionCaseSize& z : sizes) {
    const std::string name = fmt::format("attention_merge/{}x{}x{}x{}", z.batch, z.q_len, z.heads, z.head_dim);
    for (const Dtype dtype : {Dtype::kFp64, Dtype::kFp32})
      list.push_back({name, dtype, false, [=](CaseInputs& in) { return merge(in, z, large); }});
  }
}

}  // namespace

void add_attention_cases(CaseList& list, CaseSize size) {
  const std::vector<Dtype> all = {Dtype::kFp64, Dtype::kFp32, Dtype::kBf16};
  if (size == CaseSize::kLarge) {
    add(list, AttentionKind::kFlash, all, {{4, 1024, 1024, 16, 4, 64, 0, false}, {4, 1024, 1024, 8, 8, 128, 0, false}});
    add(list, AttentionKind::kNaive, all, {{1, 512, 512, 16, 4, 64, 0, false}});
    add_merges(list, true, {{4, 4096, 0, 16, 16, 64, 0, true}});
    return;
  }
  // More tokens than the tile of the narrow heads has; each wider head has smaller tiles.
  add(list, AttentionKind::kFlash, all, {{2, 69, 69, 4, 2, 5, 0, false}, {1, 19, 69, 2, 1, 40, 30, true}});
  // Heads that begin and end inside a kv head's group.
  const AttentionCaseSize uneven{2, 19, 19, 4, 3, 5, 0, false, 2, 1};
  add(list, AttentionKind::kFlash, all, {uneven});
  add(list, AttentionKind::kNaive, {Dtype::kFp32}, {uneven});
  // The other sizes of tile: heads padded to 16, 32, 128 and 256 channels.
  add(list, AttentionKind::kFlash, {Dtype::kFp32},
      {{1, 69, 69, 2, 1, 12, 30, false},
       {1, 69, 37, 2, 2, 24, 0, true},
       {1, 35, 35, 2, 1, 72, 14, false},
       {1, 19, 19, 2, 1, 130, 0, false}});
  // The widest in fp64 has the smallest tiles of all; heads that fill their tile take another path through the loads.
  add(list, AttentionKind::kFlash, {Dtype::kFp64, Dtype::kBf16},
      {{1, 19, 19, 2, 1, 130, 0, false}, {1, 35, 35, 2, 1, 32, 0, false}});
  // More keys than a block has threads, and more channels.
  add(list, AttentionKind::kNaive, all, {{2, 13, 13, 4, 2, 5, 6, true}, {1, 3, 131, 2, 1, 72, 0, false}});
  // More heads than a block has warps, and more channels than a warp has lanes.
  add_merges(list, false, {{2, 19, 0, 9, 9, 5, 0, true}, {1, 35, 0, 2, 2, 40, 0, true}});
}

}  // namespace ref5d
