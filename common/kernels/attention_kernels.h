// Private to attention's .cu files: what the kernels are told, and who launches them.
#pragma once

#include <limits>

#include "common/device/bf16.h"
#include "common/kernels/attention.h"

namespace ref5d {

// Passed to every kernel by value. Leading dims are in elements; o stands for dout in backward.
struct AttentionArgs {
  std::int64_t batch, q_len, k_len, heads, kv_heads, head_dim;
  double scale;
  std::int64_t q_ld, k_ld, v_ld, o_ld;
  const std::int32_t *q_order, *q_start, *k_order, *q_runs, *k_runs;
};

// Runs of kTokenRun tokens in n tokens, the last one perhaps cut short.
REF5D_HD constexpr std::int64_t token_runs(std::int64_t n) { return (n + kTokenRun - 1) / kTokenRun; }

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
