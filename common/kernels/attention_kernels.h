// Private to attention's .cu files: what the kernels are told, and who launches them.
#pragma once

#include <algorithm>
#include <limits>

#include "common/device/launch.h"
#include "common/kernels/attention.h"

namespace ref5d {

// Passed to every kernel by value. Leading dims are in elements; o stands for dout in backward.
struct AttentionArgs {
  std::int64_t batch, q_len, k_len, heads, kv_heads, head_dim, group, head_offset;
  double scale;
  std::int64_t q_ld, k_ld, v_ld, o_ld;
  const std::int32_t *q_order, *q_start, *k_order, *q_runs, *k_runs;
};

// Runs of kTokenRun tokens in n tokens, the last one perhaps cut short.
REF5D_HD constexpr std::int64_t token_runs(std::int64_t n) { return (n + kTokenRun - 1) / kTokenRun; }

// The kv head that a query head uses.
REF5D_HD constexpr std::int64_t kv_head_of(const AttentionArgs& args, std::int64_t head) {
  return (head + args.head_offset) / args.group;
}
// The query heads that use a kv head, from begin up to but without end: of the first and the last group perhaps only some.
struct HeadRange {
  std::int64_t begin, end;
};
REF5D_HD constexpr HeadRange query_heads_of(const AttentionArgs& args, std::int64_t kv_head) {
  const std::int64_t begin = kv_head * args.group - args.head_offset, end = begin + args.group;
  return {begin > 0 ? begin : 0, end < args.heads ? end : args.heads};
}

// Where a block works: one token of one head of one sequence; or one tile of tokens, and `token` is the tile's number.
struct Place {
  std::int64_t token, head, b;
};
// All three are folded into grid.x, since a batch may have more sequences than the 65535 that grid.y and grid.z can number.
inline Grid place_grid(std::int64_t tokens, std::int64_t heads, std::int64_t batch) {
  return Grid(static_cast<unsigned>(std::min<std::int64_t>(tokens * heads * batch, UINT32_MAX)));  // launch() refuses too many
}
__device__ __forceinline__ Place place(std::int64_t tokens, std::int64_t heads) {
  const unsigned columns = static_cast<unsigned>(tokens), rows = static_cast<unsigned>(heads), row = blockIdx.x / columns;
  return {blockIdx.x % columns, row % rows, row / rows};
}

template <typename A>
inline constexpr A kInfinity = std::numeric_limits<A>::infinity();

inline constexpr int kMaxHeadDim = 256;

// Calls f with the head dim padded to one that kernels are compiled for.
template <typename F>
void dispatch_head_dim(std::int64_t head_dim, F&& f) {
  if (head_dim <= 8) return f.template operator()<8>();
  if (head_dim <= 16) return f.template operator()<16>();
  if (head_dim <= 32) return f.template operator()<32>();
  if (head_dim <= 64) return f.template operator()<64>();
  if (head_dim <= 128) return f.template operator()<128>();
  return f.template operator()<kMaxHeadDim>();
}

void flash_attention_forward(Stream& stream, const AttentionArgs& args, const Tensor& o, const Tensor& lse, const Tensor& q,
                             const Tensor& k, const Tensor& v);
// dk and dv, which loop over the queries.
void flash_attention_backward_kv(Stream& stream, const AttentionArgs& args, const Tensor& dk, const Tensor& dv,
                                 const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& lse,
                                 const Tensor& delta, bool accumulate);
// dq, which loops over the keys.
void flash_attention_backward_q(Stream& stream, const AttentionArgs& args, const Tensor& dq, const Tensor& dout,
                                const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& lse, const Tensor& delta,
                                bool accumulate);

void naive_attention_forward(Stream& stream, const AttentionArgs& args, const Tensor& o, const Tensor& lse, const Tensor& q,
                             const Tensor& k, const Tensor& v);
void naive_attention_backward(Stream& stream, const AttentionArgs& args, const Tensor& dq, const Tensor& dk, const Tensor& dv,
                              const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& lse,
                              const Tensor& delta, bool accumulate);

}  // namespace ref5d
