// Flash attention, backward, dq: one block per (query tile, head, sequence), which loops over the key tiles.
#include "common/device/launch.h"
#include "common/device/math.h"
#include "common/kernels/attention_kernels.h"
#include "common/kernels/attention_tiles.h"
#include "common/kernels/attention_visible.h"
#include "common/kernels/dispatch.h"

namespace ref5d {
namespace {

// Scores are held transposed, [keys, queries], as in forward.
template <typename A, int D>
struct BackwardQTile {
  static constexpr int kQueries = staying_tokens(D * sizeof(A)), kKeys = moving_tokens(D * sizeof(A)), kRow = D + kRowPad<A>;
  alignas(kLaneBytes) A q[D * kQueries];     // scale * q [D, queries]
  alignas(kLaneBytes) A dout[D * kQueries];  // [D, queries]
  alignas(kLaneBytes) A k[kKeys * kRow];     // [keys, D]
  alignas(kLaneBytes) A v[kKeys * kRow];     // [keys, D]
  alignas(kLaneBytes) A ds[kKeys * kQueries];
  A lse[kQueries], delta[kQueries];
  std::int32_t q_order[kQueries], q_start[kQueries], k_order[kKeys];
};

// ds = p * (dout v^T - delta) with p = exp(q k^T - lse), 0 where the query does not see the key.
template <typename A, int D, typename Tile, typename Visible>
__device__ __forceinline__ void compute_ds(Tile& tile, const Visible& visible) {
  constexpr int kColumns = kScoreColumns<A>, kAcross = Tile::kQueries / kColumns, kCount = Tile::kKeys / kScoreRows * kAcross;
  for (int t = static_cast<int>(threadIdx.x); t < kCount; t += kAttentionThreads) {
    const int key = t / kAcross * kScoreRows, query = t % kAcross * kColumns;
    if (!visible.some(query, key)) continue;
    alignas(kLaneBytes) A s[kScoreRows * kColumns], dp[kScoreRows * kColumns];
    ScoreTile<A> sums;
    sums.clear();
    sums.template add_product<D, Tile::kRow, 1, Tile::kQueries>(tile.k + key * Tile::kRow, tile.q + query);
    sums.store(s, kColumns);
    sums.clear();
    sums.template add_product<D, Tile::kRow, 1, Tile::kQueries>(tile.v + key * Tile::kRow, tile.dout + query);
    sums.store(dp, kColumns);
    const bool all = visible.all(query, key);
    const A *lse = tile.lse + query, *delta = tile.delta + query;
    const std::int32_t *q_order = tile.q_order + query, *q_start = tile.q_start + query;
    REF5D_UNROLL_ON_GPU
    for (int r = 0; r < kScoreRows; ++r) {
      const std::int32_t order = tile.k_order[key + r];
      A* ds = tile.ds + (key + r) * Tile::kQueries + query;
      REF5D_SIMD
      for (int c = 0; c < kColumns; ++c) {
        const A e = exp_of_negative(s[r * kColumns + c] - lse[c]) * (dp[r * kColumns + c] - delta[c]);
        ds[c] = all || sees(q_order[c], q_start[c], order) ? e : A(0);
      }
    }
  }
}

template <typename T, typename O, int D>
__global__ void __launch_bounds__(kAttentionThreads)
    attention_backward_q_kernel(O* __restrict__ dq, const T* __restrict__ dout, const T* __restrict__ q,
                                const T* __restrict__ k, const T* __restrict__ v, const Acc<T>* __restrict__ lse,
                                const Acc<T>* __restrict__ delta, AttentionArgs args, std::int64_t dq_ld, bool accumulate) {
  using A = Acc<T>;
  using Tile = BackwardQTile<A, D>;
  using Visible = VisibleRuns<Tile::kQueries, Tile::kKeys>;
  constexpr int kQueries = Tile::kQueries, kKeys = Tile::kKeys, kRow = Tile::kRow;
  Tile& tile = *dynamic_shared<Tile>();
  const auto [q_tile, head, b] = place(tiles_of(args.q_len, kQueries), args.heads);
  const std::int64_t kv_head = kv_head_of(args, head);
  const std::int64_t q_begin = q_tile * kQueries, queries = args.q_len - q_begin;
  const std::int64_t q_token = b * args.q_len + q_begin, q_column = head * args.head_dim, k_column = kv_head * args.head_dim;
  const std::int64_t statistics = (b * args.heads + head) * args.q_len + q_begin;
  const std::int32_t* q_runs = args.q_runs + b * token_runs(args.q_len) * 4;
  const std::int32_t* k_runs = args.k_runs + b * token_runs(args.k_len) * 2;

  load_transposed<kQueries, D>(tile.q, q + q_token * args.q_ld + q_column, args.q_ld, queries, args.head_dim, A(args.scale));
  load_transposed<kQueries, D>(tile.dout, dout + q_token * args.o_ld + q_column, args.o_ld, queries, args.head_dim);
  load_values<kQueries>(tile.q_order, args.q_order + q_token, queries, kNoQuery);
  load_values<kQueries>(tile.q_start, args.q_start + q_token, queries, kNoQuery);
  load_lse<kQueries>(tile.lse, lse + statistics, queries);
  load_values<kQueries>(tile.delta, delta + statistics, queries, A(0));
  OutTiles<A, kQueries, D> sums;
  sums.clear();

  for (std::int64_t k_begin = 0; k_begin < args.k_len; k_begin += kKeys) {
    const Visible visible(q_runs, q_begin, args.q_len, k_runs, k_begin, args.k_len);
    if (visible.some_bits == 0) continue;
    const std::int64_t k_token = b * args.k_len + k_begin, keys = args.k_len - k_begin;
    load_tile<kKeys, D, kRow>(tile.k, k + k_token * args.k_ld + k_column, args.k_ld, keys, args.head_dim);
    load_tile<kKeys, D, kRow>(tile.v, v + k_token * args.v_ld + k_column, args.v_ld, keys, args.head_dim);
    load_values<kKeys>(tile.k_order, args.k_order + k_token, keys, kNoKey);
    __syncthreads();
    compute_ds<A, D>(tile, visible);
    __syncthreads();
    sums.for_each([&](auto& sum, int query, int column) {
      auto t = sum;
      visible.for_keys_of(query, [&](int key) {
        t.template add_product<Visible::kKeyStep, 1, kQueries, kRow>(tile.ds + key * kQueries + query,
                                                                     tile.k + key * kRow + column);
      });
      sum = t;
    });
    __syncthreads();
  }
  sums.store(dq + q_token * dq_ld + q_column, dq_ld, queries, args.head_dim, accumulate, [&](int) { return A(args.scale); });
}

}  // namespace

void flash_attention_backward_q(Stream& stream, const AttentionArgs& args, const Tensor& dq, const Tensor& dout,
                                const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& lse, const Tensor& delta,
                                bool accumulate) {
  dispatch_with_output(q.dtype(), dq.dtype(), [&]<typename T, typename O>() {
    dispatch_head_dim(args.head_dim, [&]<int D>() {
      using A = Acc<T>;
      using Tile = BackwardQTile<A, D>;
      static_assert(sizeof(Tile) <= kMaxSharedBytes);
      const Grid grid = place_grid(tiles_of(args.q_len, Tile::kQueries), args.heads, args.batch);
      launch<attention_backward_q_kernel<T, O, D>>(stream, grid, Block(kAttentionThreads, sizeof(Tile)), dq.data<O>(),
                                                   dout.data<T>(), q.data<T>(), k.data<T>(), v.data<T>(), lse.data<A>(),
                                                   delta.data<A>(), args, dq.ld(), accumulate);
    });
  });
}

}  // namespace ref5d
