// Flash attention, forward: one block per (query tile, head, sequence).
#include "common/device/launch.h"
#include "common/device/math.h"
#include "common/kernels/attention_kernels.h"
#include "common/kernels/attention_tiles.h"
#include "common/kernels/attention_visible.h"
#include "common/kernels/dispatch.h"

namespace ref5d {
namespace {

// Tile sizes and the shared memory they take. Scores are held transposed, [keys, queries]: the queries, which stay, are
// transposed once, the keys and values, which change, never; and a softmax over keys runs down columns, side by side. The
// scale is applied to q as it is loaded, here and in backward, so that both round every score alike: backward's exp(score -
// lse) is then at most 1, however large the scores.
template <typename A, int D>
struct ForwardTile {
  static constexpr int kRowBytes = D * static_cast<int>(sizeof(A));
  static constexpr int kQueries = kRowBytes <= 512 ? 64 : kRowBytes == 1024 ? 32 : 16;
  static constexpr int kKeys = kRowBytes <= 256 ? 64 : kRowBytes == 512 ? 256 / sizeof(A) : kRowBytes == 1024 ? 32 : 16;
  static constexpr int kRow = D + kRowPad<A>;
  alignas(kLaneBytes) A q[D * kQueries];      // scale * q [D, queries]
  alignas(kLaneBytes) A kv[kKeys * kRow];     // keys [keys, D], then values in their place
  alignas(kLaneBytes) A s[kKeys * kQueries];  // scores, then exponentials [keys, queries]
  A top[kQueries];                            // the greatest score so far
  A sum[kQueries];                            // of the exponentials so far, relative to top
  A correction[kQueries];                     // what earlier sums are multiplied by when top grows; at the end 1 / sum
  std::int32_t q_order[kQueries], q_start[kQueries], k_order[kKeys];
};

// Columns that a thread takes together in the softmax: on the CPU a run, so that the loops vectorise.
inline constexpr int kStrip = kOneThread ? static_cast<int>(kTokenRun) : 1;

// scores = k q^T, -inf where the query does not see the key. Pairs of runs without a visible pair are left out.
template <typename A, int D, typename Tile, typename Visible>
__device__ __forceinline__ void compute_scores(Tile& tile, const Visible& visible) {
  constexpr int kAcross = Tile::kQueries / kScoreColumns<A>, kCount = Tile::kKeys / kScoreRows * kAcross;
  for (int t = static_cast<int>(threadIdx.x); t < kCount; t += kAttentionThreads) {
    const int key = t / kAcross * kScoreRows, query = t % kAcross * kScoreColumns<A>;
    if (!visible.some(query, key)) continue;
    ScoreTile<A> scores;
    scores.clear();
    scores.template add_product<D, Tile::kRow, 1, Tile::kQueries>(tile.kv + key * Tile::kRow, tile.q + query);
    A* s = tile.s + key * Tile::kQueries + query;
    scores.store(s, Tile::kQueries);
    if (visible.all(query, key)) continue;
    for (int r = 0; r < kScoreRows; ++r) {
      const std::int32_t order = tile.k_order[key + r];
      A* row = s + r * Tile::kQueries;
      REF5D_SIMD
      for (int c = 0; c < kScoreColumns<A>; ++c)
        row[c] = sees(tile.q_order[query + c], tile.q_start[query + c], order) ? row[c] : -kInfinity<A>;
    }
  }
}

// The online softmax: s = exp(s - top) with the new top, and the running sum. A query that has seen no key keeps top = -inf and
// is shifted by 0 instead, so that (-inf) - (-inf) never arises.
template <typename A, typename Tile, typename Visible>
__device__ __forceinline__ void exponentiate(Tile& tile, const Visible& visible) {
  static_assert(Tile::kQueries % kStrip == 0);
  for (int query = static_cast<int>(threadIdx.x) * kStrip; query < Tile::kQueries; query += kAttentionThreads * kStrip) {
    A top[kStrip], shift[kStrip], sum[kStrip];
    REF5D_SIMD
    for (int c = 0; c < kStrip; ++c) top[c] = tile.top[query + c];
    visible.for_keys_of(query, [&](int run) {
      for (int key = run; key < run + visible.kKeyStep; ++key) {
        const A* s = tile.s + key * Tile::kQueries + query;
        REF5D_SIMD
        for (int c = 0; c < kStrip; ++c) top[c] = s[c] > top[c] ? s[c] : top[c];
      }
    });
    REF5D_SIMD
    for (int c = 0; c < kStrip; ++c) {
      shift[c] = top[c] == -kInfinity<A> ? A(0) : top[c];
      const A correction = exp_of_negative(tile.top[query + c] - shift[c]);
      tile.correction[query + c] = correction;
      tile.top[query + c] = top[c];
      sum[c] = tile.sum[query + c] * correction;
    }
    visible.for_keys_of(query, [&](int run) {
      for (int key = run; key < run + visible.kKeyStep; ++key) {
        A* s = tile.s + key * Tile::kQueries + query;
        REF5D_SIMD
        for (int c = 0; c < kStrip; ++c) {
          s[c] = exp_of_negative(s[c] - shift[c]);
          sum[c] += s[c];
        }
      }
    });
    REF5D_SIMD
    for (int c = 0; c < kStrip; ++c) tile.sum[query + c] = sum[c];
  }
}

template <typename T, typename O, int D>
__global__ void __launch_bounds__(kAttentionThreads)
    attention_forward_kernel(O* __restrict__ o, Acc<T>* __restrict__ lse, const T* __restrict__ q, const T* __restrict__ k,
                             const T* __restrict__ v, AttentionArgs args) {
  using A = Acc<T>;
  using Tile = ForwardTile<A, D>;
  using Out = OutTiles<A, Tile::kQueries, D>;
  using Visible = VisibleRuns<Tile::kQueries, Tile::kKeys>;
  constexpr int kQueries = Tile::kQueries, kKeys = Tile::kKeys, kRow = Tile::kRow;
  Tile& tile = *dynamic_shared<Tile>();
  const auto [q_tile, head, b] = place(tiles_of(args.q_len, kQueries), args.heads);
  const std::int64_t kv_head = kv_head_of(args, head);
  const std::int64_t q_begin = q_tile * kQueries, queries = args.q_len - q_begin;
  const std::int64_t q_token = b * args.q_len + q_begin, q_column = head * args.head_dim, k_column = kv_head * args.head_dim;
  const std::int32_t* q_runs = args.q_runs + b * token_runs(args.q_len) * 4;
  const std::int32_t* k_runs = args.k_runs + b * token_runs(args.k_len) * 2;

  load_transposed<kQueries, D>(tile.q, q + q_token * args.q_ld + q_column, args.q_ld, queries, args.head_dim, A(args.scale));
  load_values<kQueries>(tile.q_order, args.q_order + q_token, queries, kNoQuery);
  load_values<kQueries>(tile.q_start, args.q_start + q_token, queries, kNoQuery);
  // Only the thread that owns a query touches its top and its sum.
  for (int first = static_cast<int>(threadIdx.x) * kStrip; first < kQueries; first += kAttentionThreads * kStrip) {
    REF5D_SIMD
    for (int c = 0; c < kStrip; ++c) {
      tile.top[first + c] = -kInfinity<A>;
      tile.sum[first + c] = 0;
    }
  }
  Out out;
  out.clear();

  for (std::int64_t k_begin = 0; k_begin < args.k_len; k_begin += kKeys) {
    const Visible visible(q_runs, q_begin, args.q_len, k_runs, k_begin, args.k_len);
    if (visible.some_bits == 0) continue;
    const std::int64_t k_token = b * args.k_len + k_begin, keys = args.k_len - k_begin;
    load_tile<kKeys, D, kRow>(tile.kv, k + k_token * args.k_ld + k_column, args.k_ld, keys, args.head_dim);
    load_values<kKeys>(tile.k_order, args.k_order + k_token, keys, kNoKey);
    __syncthreads();
    compute_scores<A, D>(tile, visible);
    __syncthreads();
    load_tile<kKeys, D, kRow>(tile.kv, v + k_token * args.v_ld + k_column, args.v_ld, keys, args.head_dim);
    exponentiate<A>(tile, visible);
    __syncthreads();
    out.for_each([&](auto& sums, int query, int column) {
      auto t = sums;
      REF5D_UNROLL
      for (int r = 0; r < Out::kRows; ++r) t.scale_row(r, tile.correction[query + r]);
      visible.for_keys_of(query, [&](int key) {
        t.template add_product<Visible::kKeyStep, 1, kQueries, kRow>(tile.s + key * kQueries + query,
                                                                     tile.kv + key * kRow + column);
      });
      sums = t;
    });
    __syncthreads();
  }

  A* lse_row = lse + (b * args.heads + head) * args.q_len + q_begin;
  for (int first = static_cast<int>(threadIdx.x) * kStrip; first < kQueries; first += kAttentionThreads * kStrip) {
    for (int query = first; query < first + kStrip; ++query) {
      const A sum = tile.sum[query];
      tile.correction[query] = sum == 0 ? A(0) : 1 / sum;
      if (query < queries) lse_row[query] = sum == 0 ? -kInfinity<A> : tile.top[query] + log(sum);
    }
  }
  __syncthreads();
  out.store(o + q_token * args.o_ld + q_column, args.o_ld, queries, args.head_dim, false,
            [&](int query) { return tile.correction[query]; });
}

}  // namespace

void flash_attention_forward(Stream& stream, const AttentionArgs& args, const Tensor& o, const Tensor& lse, const Tensor& q,
                             const Tensor& k, const Tensor& v) {
  dispatch_with_output(q.dtype(), o.dtype(), [&]<typename T, typename O>() {
    dispatch_head_dim(args.head_dim, [&]<int D>() {
      using Tile = ForwardTile<Acc<T>, D>;
      static_assert(sizeof(Tile) <= kMaxSharedBytes);
      const Grid grid = place_grid(tiles_of(args.q_len, Tile::kQueries), args.heads, args.batch);
      launch<attention_forward_kernel<T, O, D>>(stream, grid, Block(kAttentionThreads, sizeof(Tile)), o.data<O>(),
                                                lse.data<Acc<T>>(), q.data<T>(), k.data<T>(), v.data<T>(), args);
    });
  });
}

}  // namespace ref5d
