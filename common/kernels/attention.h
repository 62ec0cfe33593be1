// Causal attention within documents, with grouped query heads.
//
// A token is described by two int32 numbers: `order`, its place in the (global) sequence, and `start`, the order of the first
// token of its document. Query q sees key k exactly if start[q] <= order[k] <= order[q]. Nothing is taken from a token's index
// in its array, so a rank may hold any subset of a sequence. (The position within the document, for RoPE, is order - start.)
//
// Shapes: q, o [B*Sq, N*D]; k, v [B*Sk, K*D]; lse [B, N, Sq]. q, k, v, o and their gradients may have larger leading dims. lse,
// delta are in the accumulator's dtype.
//
// Head h of q uses head (h + head_offset) / group of k and v: h / (N/K), unless the heads here are a contiguous range of a
// model's that begins or ends inside a group. (6 heads and 3 kv heads over 2 ranks, group 2: rank 0 has heads 0, 1, 2 and kv
// heads 0, 1; rank 1 has heads 3, 4, 5 and kv heads 1, 2, and offset 1. Their gradients of kv head 1 add up to the whole.)
#pragma once

#include "common/tensor/tensor.h"

namespace ref5d {

// kFlash: tiles with an online softmax (Dao et al. 2022), no array of [Sq, Sk]. kNaive: scores stored, softmax, product.
enum class AttentionKind { kFlash, kNaive };

// head_dim may be anything from 1 to 256 (InputError beyond). Without a group, heads is a multiple of kv_heads; with one, the
// last head uses the last kv head, so that every kv head here has a query head here.
struct AttentionShape {
  std::int64_t batch, q_len, k_len, heads, kv_heads, head_dim;
  double scale;                  // of the scores: 1 / sqrt(D)
  std::int64_t group = 0;        // query heads that share a kv head; 0: heads / kv_heads
  std::int64_t head_offset = 0;  // query heads of the first kv head's group that are not here, since they come before head 0
};

// Which tokens the queries and the keys are: int32 [B, Sq] and [B, Sk]. Also carries, for each run of kTokenRun tokens, the
// least and the greatest order and start, with which whole tiles are skipped (nothing visible) or left unmasked (all visible).
inline constexpr std::int64_t kTokenRun = 16;
struct AttentionTokens {
  Tensor q_order, q_start, k_order;
  Tensor q_runs;  // int32 [B, ceil(Sq/16), 4]: min order, max order, min start, max start
  Tensor k_runs;  // int32 [B, ceil(Sk/16), 2]: min order, max order
};
// q_order, q_start [B, Sq], k_order [B, Sk].
[[nodiscard]] AttentionTokens make_attention_tokens(Stream& stream, const Tensor& q_order, const Tensor& q_start,
                                                    const Tensor& k_order);

// The same queries with other keys.
[[nodiscard]] AttentionTokens with_keys(Stream& stream, const AttentionTokens& tokens, const Tensor& k_order);

// o = softmax(scale * q k^T) v over the visible keys, lse = log(sum exp(scale * q k)). A query that sees no key gets o = 0 and
// lse = -inf. o is of q's dtype or its accumulator's (a ring merges partial results in the accumulator).
void attention_forward(Stream& stream, AttentionKind kind, const AttentionShape& shape, const AttentionTokens& tokens,
                       const Tensor& o, const Tensor& lse, const Tensor& q, const Tensor& k, const Tensor& v);

// delta [B, N, Sq] = sum over the head dim of dout * o.
void attention_delta(Stream& stream, const AttentionShape& shape, const Tensor& delta, const Tensor& dout, const Tensor& o);

// With p = exp(scale * q k - lse):  dv = p^T dout;  ds = p * (dout v^T - delta);  dq = scale * ds k;  dk = scale * ds^T q,
// where dk and dv sum over the query heads of a group that are here. Overwritten, or added to if accumulate; each of q's dtype
// or its accumulator's. lse and delta are those of the whole attention, so q, k, v may be one pair of chunks of a longer
// sequence.
void attention_backward(Stream& stream, AttentionKind kind, const AttentionShape& shape, const AttentionTokens& tokens,
                        const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& dout, const Tensor& q,
                        const Tensor& k, const Tensor& v, const Tensor& lse, const Tensor& delta, bool accumulate);

// Pairs (query, key) that are visible, over the whole batch: the exact work. order and start on the host, [B, S].
[[nodiscard]] std::int64_t visible_pairs(const std::vector<std::int32_t>& q_order, const std::vector<std::int32_t>& q_start,
                                         const std::vector<std::int32_t>& k_order, std::int64_t batch);
// Flops of one forward: 4 * pairs * N * D. Backward: 10 * pairs * N * D (five products: the scores again, dv, dp, dk, dq).
[[nodiscard]] inline std::int64_t attention_forward_flops(std::int64_t pairs, std::int64_t heads, std::int64_t head_dim) {
  return 4 * pairs * heads * head_dim;
}
[[nodiscard]] inline std::int64_t attention_backward_flops(std::int64_t pairs, std::int64_t heads, std::int64_t head_dim) {
  return 10 * pairs * heads * head_dim;
}

}  // namespace ref5d
