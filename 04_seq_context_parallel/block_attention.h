// Attention of this rank's queries over one block of keys: the piece of work that every kind of context parallelism consists
// of.
#pragma once

#include "04_seq_context_parallel/attention_plan.h"
#include "common/model/attention_layer.h"

namespace ref5d::context_parallel {

// Keys and values of some tokens, [B * length, kv heads * D] each; or their gradients.
struct KeyValues {
  Tensor k, v;
};

// Attention's shape for these queries and keys, of ctx.batch->batch sequences.
[[nodiscard]] AttentionShape shape_of(const Context& ctx, const Tensor& q, const Tensor& k, const HeadMap& heads);

// o and lse over the keys of this block alone; o may be in the accumulator's dtype.
void attend(Context& ctx, const KeyBlock& block, const HeadMap& heads, const Tensor& o, const Tensor& lse, const Tensor& q,
            const KeyValues& kv);

// What this block contributes to dq, dk and dv, each of q's dtype or its accumulator's. lse and delta are those of all keys.
void attend_backward(Context& ctx, const KeyBlock& block, const HeadMap& heads, const Tensor& dq, const KeyValues& dkv,
                     const Tensor& dout, const Tensor& q, const KeyValues& kv, const Tensor& lse, const Tensor& delta,
                     bool accumulate);

// delta [B, N, Sq] of all keys.
[[nodiscard]] Tensor make_delta(Context& ctx, const HeadMap& heads, const Tensor& dout, const Tensor& o, const Tensor& q,
                                const Tensor& k);

// Sums in the accumulator's dtype, which a ring adds to.
[[nodiscard]] Tensor zero_sum(Context& ctx, std::int64_t rows, std::int64_t columns, Dtype dtype);
// sum += term, both of them.
void add_to(Context& ctx, const KeyValues& sum, const KeyValues& term);
// to = from, rounded where `to` is narrower; `to` may be columns of a packed matrix.
void round_into(Context& ctx, const Tensor& to, const Tensor& from);
// x itself, or where it is columns of a packed matrix a copy: messages are contiguous.
[[nodiscard]] Tensor contiguous(Context& ctx, const Tensor& x);

}  // namespace ref5d::context_parallel
