// Naive attention: the scores of all pairs are stored, [B, N, Sq, Sk], then a softmax over each row, then a product. It shows
// what flash attention saves, and is written to be read.
#include "common/device/launch.h"
#include "common/device/math.h"
#include "common/kernels/attention_kernels.h"
#include "common/kernels/dispatch.h"

namespace ref5d {
namespace {

// A block has one query, or one key, of one head.
__device__ __forceinline__ Place query_place(const AttentionArgs& args) { return place(args.q_len, args.heads); }
__device__ __forceinline__ Place key_place(const AttentionArgs& args) { return place(args.k_len, args.kv_heads); }
// The query's row of a [B, N, Sq] array.
__device__ __forceinline__ std::int64_t query_row(const AttentionArgs& args, const Place& at) {
  return (at.b * args.heads + at.head) * args.q_len + at.token;
}
__device__ __forceinline__ bool sees_key(const AttentionArgs& args, const Place& query, std::int64_t key) {
  const std::int64_t q = query.b * args.q_len + query.token;
  const std::int32_t order = args.k_order[query.b * args.k_len + key];
  return args.q_start[q] <= order && order <= args.q_order[q];
}
template <typename T>
__device__ __forceinline__ Acc<T> dot(const T* __restrict__ x, const T* __restrict__ y, std::int64_t n) {
  Acc<T> sum = 0;
  REF5D_SIMD_SUM(sum)
  for (std::int64_t i = 0; i < n; ++i) sum += Acc<T>(x[i]) * Acc<T>(y[i]);
  return sum;
}

// scores = scale * q k^T, -inf where the query does not see the key.
template <typename T>
__global__ void naive_scores_kernel(Acc<T>* __restrict__ scores, const T* __restrict__ q, const T* __restrict__ k,
                                    AttentionArgs args) {
  using A = Acc<T>;
  const Place at = query_place(args);
  const std::int64_t D = args.head_dim, kv_head = kv_head_of(args, at.head);
  const T* query = q + (at.b * args.q_len + at.token) * args.q_ld + at.head * D;
  A* row = scores + query_row(args, at) * args.k_len;
  for (std::int64_t j = threadIdx.x; j < args.k_len; j += blockDim.x) {
    const T* key = k + (at.b * args.k_len + j) * args.k_ld + kv_head * D;
    row[j] = sees_key(args, at, j) ? A(args.scale) * dot(query, key, D) : -kInfinity<A>;
  }
}

// A row of scores becomes probabilities; lse = log(sum exp(score)). A row that is -inf throughout becomes 0.
template <typename A>
__global__ void naive_softmax_kernel(A* __restrict__ scores, A* __restrict__ lse, AttentionArgs args) {
  const std::int64_t index = query_row(args, query_place(args));
  A* row = scores + index * args.k_len;
  A top = -kInfinity<A>;
  for (std::int64_t j = threadIdx.x; j < args.k_len; j += blockDim.x) top = row[j] > top ? row[j] : top;
  top = block_max(top);
  const A shift = top == -kInfinity<A> ? A(0) : top;  // (-inf) - (-inf) would be NaN
  A sum = 0;
  REF5D_SIMD_SUM(sum)
  for (std::int64_t j = threadIdx.x; j < args.k_len; j += blockDim.x) {
    row[j] = exp_of(row[j] - shift);
    sum += row[j];
  }
  sum = block_sum(sum);
  const A factor = sum == 0 ? A(0) : 1 / sum;
  for (std::int64_t j = threadIdx.x; j < args.k_len; j += blockDim.x) row[j] *= factor;
  if (threadIdx.x == 0) lse[index] = sum == 0 ? -kInfinity<A> : top + log(sum);
}

// A row of scores becomes probabilities with a log-sum-exp that is known.
template <typename A>
__global__ void naive_probabilities_kernel(A* __restrict__ scores, const A* __restrict__ lse, AttentionArgs args) {
  const std::int64_t index = query_row(args, query_place(args));
  A* row = scores + index * args.k_len;
  const A shift = lse[index];
  const bool nothing = shift == -kInfinity<A>;
  for (std::int64_t j = threadIdx.x; j < args.k_len; j += blockDim.x) row[j] = nothing ? A(0) : exp_of(row[j] - shift);
}

// ds = p * (dout v^T - delta).
template <typename T>
__global__ void naive_ds_kernel(Acc<T>* __restrict__ ds, const Acc<T>* __restrict__ p, const T* __restrict__ dout,
                                const T* __restrict__ v, const Acc<T>* __restrict__ delta, AttentionArgs args) {
  using A = Acc<T>;
  const Place at = query_place(args);
  const std::int64_t D = args.head_dim, kv_head = kv_head_of(args, at.head), index = query_row(args, at);
  const T* gradient = dout + (at.b * args.q_len + at.token) * args.o_ld + at.head * D;
  for (std::int64_t j = threadIdx.x; j < args.k_len; j += blockDim.x) {
    const A weight = p[index * args.k_len + j];
    const T* value = v + (at.b * args.k_len + j) * args.v_ld + kv_head * D;
    ds[index * args.k_len + j] = weight == 0 ? A(0) : weight * (dot(gradient, value, D) - delta[index]);
  }
}

// sums[d] += sum over i < n of weights[i * stride] * rows[i * ld + d]. A thread owns its channels: no barrier needed.
template <typename A, typename T>
__device__ __forceinline__ void add_weighted_rows(A* __restrict__ sums, const A* __restrict__ weights, std::int64_t stride,
                                                  const T* __restrict__ rows, std::int64_t ld, std::int64_t n, std::int64_t D) {
  for (std::int64_t i = 0; i < n; ++i) {
    const A weight = weights[i * stride];
    if (weight == 0) continue;
    for (std::int64_t d = threadIdx.x; d < D; d += blockDim.x) sums[d] += weight * A(rows[i * ld + d]);
  }
}
template <typename A>
__device__ __forceinline__ void clear_sums(A* __restrict__ sums, std::int64_t D) {
  for (std::int64_t d = threadIdx.x; d < D; d += blockDim.x) sums[d] = 0;
}
template <typename A, typename O>
__device__ __forceinline__ void store_sums(O* __restrict__ to, const A* __restrict__ sums, A scale, std::int64_t D,
                                           bool accumulate) {
  for (std::int64_t d = threadIdx.x; d < D; d += blockDim.x)
    to[d] = O(accumulate ? A(to[d]) + scale * sums[d] : scale * sums[d]);
}

// out = scale * weights rows: o from p and v, dq from ds and k.
template <typename T, typename O>
__global__ void naive_query_product_kernel(O* __restrict__ out, const Acc<T>* __restrict__ weights, const T* __restrict__ rows,
                                           AttentionArgs args, std::int64_t out_ld, std::int64_t rows_ld, Acc<T> scale,
                                           bool accumulate) {
  using A = Acc<T>;
  const Place at = query_place(args);
  const std::int64_t D = args.head_dim, kv_head = kv_head_of(args, at.head);
  A* sums = shared<A, kMaxHeadDim>();
  clear_sums(sums, D);
  add_weighted_rows(sums, weights + query_row(args, at) * args.k_len, 1, rows + at.b * args.k_len * rows_ld + kv_head * D,
                    rows_ld, args.k_len, D);
  store_sums(out + (at.b * args.q_len + at.token) * out_ld + at.head * D, sums, scale, D, accumulate);
}

// out = scale * weights^T rows, summed over the query heads of a group: dv from p and dout, dk from ds and q.
template <typename T, typename O>
__global__ void naive_key_product_kernel(O* __restrict__ out, const Acc<T>* __restrict__ weights, const T* __restrict__ rows,
                                         AttentionArgs args, std::int64_t out_ld, std::int64_t rows_ld, Acc<T> scale,
                                         bool accumulate) {
  using A = Acc<T>;
  const Place at = key_place(args);
  const std::int64_t D = args.head_dim;
  const HeadRange heads = query_heads_of(args, at.head);
  A* sums = shared<A, kMaxHeadDim>();
  clear_sums(sums, D);
  for (std::int64_t head = heads.begin; head < heads.end; ++head) {
    const std::int64_t first_row = (at.b * args.heads + head) * args.q_len;
    add_weighted_rows(sums, weights + first_row * args.k_len + at.token, args.k_len,
                      rows + at.b * args.q_len * rows_ld + head * D, rows_ld, args.q_len, D);
  }
  store_sums(out + (at.b * args.k_len + at.token) * out_ld + at.head * D, sums, scale, D, accumulate);
}

Grid query_grid(const AttentionArgs& args) { return place_grid(args.q_len, args.heads, args.batch); }
Grid key_grid(const AttentionArgs& args) { return place_grid(args.k_len, args.kv_heads, args.batch); }

// The O(S^2) memory that flash attention does without.
Tensor allocate_scores(Stream& stream, const AttentionArgs& args, Dtype dtype) {
  return Tensor::empty({args.batch, args.heads, args.q_len, args.k_len}, accumulator_of(dtype), MemoryCategory::kActivations,
                       stream);
}

}  // namespace

void naive_attention_forward(Stream& stream, const AttentionArgs& args, const Tensor& o, const Tensor& lse, const Tensor& q,
                             const Tensor& k, const Tensor& v) {
  const Tensor scores = allocate_scores(stream, args, q.dtype());
  const Grid grid = query_grid(args);
  dispatch_with_output(q.dtype(), o.dtype(), [&]<typename T, typename O>() {
    using A = Acc<T>;
    launch<naive_scores_kernel<T>>(stream, grid, block_size(128), scores.data<A>(), q.data<T>(), k.data<T>(), args);
    launch<naive_softmax_kernel<A>>(stream, grid, block_size(128), scores.data<A>(), lse.data<A>(), args);
    launch<naive_query_product_kernel<T, O>>(stream, grid, block_size(64), o.data<O>(), scores.data<A>(), v.data<T>(), args,
                                             o.ld(), v.ld(), A(1), false);
  });
}

void naive_attention_backward(Stream& stream, const AttentionArgs& args, const Tensor& dq, const Tensor& dk, const Tensor& dv,
                              const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& lse,
                              const Tensor& delta, bool accumulate) {
  const Tensor p = allocate_scores(stream, args, q.dtype()), ds = allocate_scores(stream, args, q.dtype());
  const Grid grid = query_grid(args);
  dispatch(q.dtype(), [&]<typename T>() {
    using A = Acc<T>;
    launch<naive_scores_kernel<T>>(stream, grid, block_size(128), p.data<A>(), q.data<T>(), k.data<T>(), args);
    launch<naive_probabilities_kernel<A>>(stream, grid, block_size(128), p.data<A>(), lse.data<A>(), args);
    launch<naive_ds_kernel<T>>(stream, grid, block_size(128), ds.data<A>(), p.data<A>(), dout.data<T>(), v.data<T>(),
                               delta.data<A>(), args);
  });
  dispatch_with_output(q.dtype(), dq.dtype(), [&]<typename T, typename O>() {
    using A = Acc<T>;
    launch<naive_query_product_kernel<T, O>>(stream, grid, block_size(64), dq.data<O>(), ds.data<A>(), k.data<T>(), args,
                                             dq.ld(), k.ld(), A(args.scale), accumulate);
  });
  dispatch_with_output(q.dtype(), dk.dtype(), [&]<typename T, typename O>() {
    using A = Acc<T>;
    launch<naive_key_product_kernel<T, O>>(stream, key_grid(args), block_size(64), dk.data<O>(), ds.data<A>(), q.data<T>(),
                                           args, dk.ld(), q.ld(), A(args.scale), accumulate);
    launch<naive_key_product_kernel<T, O>>(stream, key_grid(args), block_size(64), dv.data<O>(), p.data<A>(), dout.data<T>(),
                                           args, dv.ld(), dout.ld(), A(1), accumulate);
  });
}

}  // namespace ref5d
