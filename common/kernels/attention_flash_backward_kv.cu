// Flash attention, backward, dk and dv: one block per (key tile, kv head, sequence), which loops over the query heads of the
// group and over the query tiles, so that no two blocks add to the same gradient.
#include "common/device/launch.h"
#include "common/device/math.h"
#include "common/kernels/attention_kernels.h"
#include "common/kernels/attention_tiles.h"
#include "common/kernels/attention_visible.h"
#include "common/kernels/dispatch.h"

namespace ref5d {
namespace {

// Scores are held as [queries, keys]: the keys and values, which stay, are transposed once.
template <typename A, int D>
struct BackwardKvTile {
  static constexpr int kQueries = moving_tokens(D * sizeof(A)), kKeys = staying_tokens(D * sizeof(A)), kRow = D + kRowPad<A>;
  alignas(kLaneBytes) A k[D * kKeys];           // [D, keys]
  alignas(kLaneBytes) A v[D * kKeys];           // [D, keys]
  alignas(kLaneBytes) A q[kQueries * kRow];     // scale * q [queries, D]
  alignas(kLaneBytes) A dout[kQueries * kRow];  // [queries, D]
  alignas(kLaneBytes) A p[kQueries * kKeys];
  alignas(kLaneBytes) A ds[kQueries * kKeys];
  A lse[kQueries], delta[kQueries];
  std::int32_t q_order[kQueries], q_start[kQueries], k_order[kKeys];
};

// p = exp(q k^T - lse), 0 where the query does not see the key; ds = p * (dout v^T - delta).
template <typename A, int D, typename Tile, typename Visible>
__device__ __forceinline__ void compute_p_and_ds(Tile& tile, const Visible& visible) {
  constexpr int kColumns = kScoreColumns<A>, kAcross = Tile::kKeys / kColumns, kCount = Tile::kQueries / kScoreRows * kAcross;
  for (int t = static_cast<int>(threadIdx.x); t < kCount; t += kAttentionThreads) {
    const int query = t / kAcross * kScoreRows, key = t % kAcross * kColumns;
    if (!visible.some(query, key)) continue;
    A* p = tile.p + query * Tile::kKeys + key;
    A* ds = tile.ds + query * Tile::kKeys + key;
    ScoreTile<A> sums;
    sums.clear();
    sums.template add_product<D, Tile::kRow, 1, Tile::kKeys>(tile.q + query * Tile::kRow, tile.k + key);
    sums.store(p, Tile::kKeys);
    sums.clear();
    sums.template add_product<D, Tile::kRow, 1, Tile::kKeys>(tile.dout + query * Tile::kRow, tile.v + key);
    sums.store(ds, Tile::kKeys);
    const bool all = visible.all(query, key);
    for (int r = 0; r < kScoreRows; ++r, p += Tile::kKeys, ds += Tile::kKeys) {
      const A lse = tile.lse[query + r], delta = tile.delta[query + r];
      const std::int32_t order = tile.q_order[query + r], start = tile.q_start[query + r];
      REF5D_SIMD
      for (int c = 0; c < kColumns; ++c) {
        const A e = exp_of_negative(p[c] - lse);
        p[c] = all || sees(order, start, tile.k_order[key + c]) ? e : A(0);
        ds[c] = p[c] * (ds[c] - delta);
      }
    }
  }
}

template <typename T, typename O, int D>
__global__ void __launch_bounds__(kAttentionThreads)
    attention_backward_kv_kernel(O* __restrict__ dk, O* __restrict__ dv, const T* __restrict__ dout, const T* __restrict__ q,
                                 const T* __restrict__ k, const T* __restrict__ v, const Acc<T>* __restrict__ lse,
                                 const Acc<T>* __restrict__ delta, AttentionArgs args, std::int64_t dk_ld, std::int64_t dv_ld,
                                 bool accumulate) {
  using A = Acc<T>;
  using Tile = BackwardKvTile<A, D>;
  using Out = OutTiles<A, Tile::kKeys, D>;
  using Visible = VisibleRuns<Tile::kQueries, Tile::kKeys>;
  constexpr int kQueries = Tile::kQueries, kKeys = Tile::kKeys, kRow = Tile::kRow;
  Tile& tile = *dynamic_shared<Tile>();
  const auto [k_tile, kv_head, b] = place(tiles_of(args.k_len, kKeys), args.kv_heads);
  const HeadRange heads = query_heads_of(args, kv_head);
  const std::int64_t k_begin = k_tile * kKeys, keys = args.k_len - k_begin;
  const std::int64_t k_token = b * args.k_len + k_begin, k_column = kv_head * args.head_dim;
  const std::int32_t* q_runs = args.q_runs + b * token_runs(args.q_len) * 4;
  const std::int32_t* k_runs = args.k_runs + b * token_runs(args.k_len) * 2;

  load_transposed<kKeys, D>(tile.k, k + k_token * args.k_ld + k_column, args.k_ld, keys, args.head_dim);
  load_transposed<kKeys, D>(tile.v, v + k_token * args.v_ld + k_column, args.v_ld, keys, args.head_dim);
  load_values<kKeys>(tile.k_order, args.k_order + k_token, keys, kNoKey);
  Out dk_sums, dv_sums;
  dk_sums.clear();
  dv_sums.clear();

  for (std::int64_t q_begin = 0; q_begin < args.q_len; q_begin += kQueries) {
    const Visible visible(q_runs, q_begin, args.q_len, k_runs, k_begin, args.k_len);
    if (visible.some_bits == 0) continue;
    const std::int64_t q_token = b * args.q_len + q_begin, queries = args.q_len - q_begin;
    for (std::int64_t head = heads.begin; head < heads.end; ++head) {
      const std::int64_t q_column = head * args.head_dim, statistics = (b * args.heads + head) * args.q_len + q_begin;
      load_tile<kQueries, D, kRow>(tile.q, q + q_token * args.q_ld + q_column, args.q_ld, queries, args.head_dim,
                                   A(args.scale));
      load_tile<kQueries, D, kRow>(tile.dout, dout + q_token * args.o_ld + q_column, args.o_ld, queries, args.head_dim);
      load_values<kQueries>(tile.q_order, args.q_order + q_token, queries, kNoQuery);
      load_values<kQueries>(tile.q_start, args.q_start + q_token, queries, kNoQuery);
      load_lse<kQueries>(tile.lse, lse + statistics, queries);
      load_values<kQueries>(tile.delta, delta + statistics, queries, A(0));
      __syncthreads();
      compute_p_and_ds<A, D>(tile, visible);
      __syncthreads();
      const auto add = [&](Out& sums, const A* weights, const A* rows) {  // sums += weights^T rows
        sums.for_each([&](auto& sum, int key, int column) {
          auto t = sum;
          visible.for_queries_of(key, [&](int query) {
            t.template add_product<Visible::kQueryStep, 1, kKeys, kRow>(weights + query * kKeys + key,
                                                                        rows + query * kRow + column);
          });
          sum = t;
        });
      };
      add(dv_sums, tile.p, tile.dout);
      add(dk_sums, tile.ds, tile.q);
      __syncthreads();
    }
  }
  const auto one = [](int) { return A(1); };
  dv_sums.store(dv + k_token * dv_ld + k_column, dv_ld, keys, args.head_dim, accumulate, one);
  dk_sums.store(dk + k_token * dk_ld + k_column, dk_ld, keys, args.head_dim, accumulate, one);
}

}  // namespace

void flash_attention_backward_kv(Stream& stream, const AttentionArgs& args, const Tensor& dk, const Tensor& dv,
                                 const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& lse,
                                 const Tensor& delta, bool accumulate) {
  dispatch_with_output(q.dtype(), dk.dtype(), [&]<typename T, typename O>() {
    dispatch_head_dim(args.head_dim, [&]<int D>() {
      using A = Acc<T>;
      using Tile = BackwardKvTile<A, D>;
      static_assert(sizeof(Tile) <= kMaxSharedBytes);
      const Grid grid = place_grid(tiles_of(args.k_len, Tile::kKeys), args.kv_heads, args.batch);
      launch<attention_backward_kv_kernel<T, O, D>>(stream, grid, Block(kAttentionThreads, sizeof(Tile)), dk.data<O>(),
                                                    dv.data<O>(), dout.data<T>(), q.data<T>(), k.data<T>(), v.data<T>(),
                                                    lse.data<A>(), delta.data<A>(), args, dk.ld(), dv.ld(), accumulate);
    });
  });
}

}  // namespace ref5d
