// The tiled matrix product, the classic exercise: a block computes a 64 x 64 tile of C, walking along K in steps of 16. For
// each step the block brings a tile of A and a tile of B into shared memory, where every number is used 64 times, and each
// thread multiplies its own small patch of the tile out of registers, where it is used once more per row or column.
//
// On a GPU 256 threads have a patch of 4 x 4 each. On the CPU the one thread has eight patches of 8 x 64: a vector of columns
// against eight rows fills the registers, and the loop over columns is the one that vectorises.
#include "common/device/launch.h"
#include "common/kernels/dispatch.h"
#include "common/kernels/gemm.h"

namespace ref5d {
namespace {

constexpr int kTileM = 64, kTileN = 64, kTileK = 16;
constexpr int kThreads = static_cast<int>(block_size(256));
constexpr int kPatchRows = kThreads == 1 ? 8 : 4, kPatchColumns = kThreads == 1 ? kTileN : 4;
constexpr int kPatches = kTileM * kTileN / (kPatchRows * kPatchColumns) / kThreads;  // of a thread
// A row of a tile in shared memory is a little longer than it needs to be, so that a column does not lie in one bank.
constexpr int kPad = kThreads == 1 ? 0 : 4;

// Brings kOuter x kInner elements (inner ones are neighbours in memory) into a tile whose rows are `kStride` long, as they lie
// or, if kSwap, with rows and columns exchanged. Zeros stand where the matrix has ended.
template <int kOuter, int kInner, int kStride, bool kSwap, typename A, typename T>
__device__ __forceinline__ void load_tile(A* __restrict__ tile, const T* __restrict__ from, std::int64_t ld,
                                          std::int64_t outer_left, std::int64_t inner_left) {
  constexpr int kLanes = kThreads < kInner ? kThreads : kInner;  // threads side by side along the inner dim
  const bool whole = outer_left >= kOuter && inner_left >= kInner;
  for (int o = static_cast<int>(threadIdx.x) / kLanes; o < kOuter; o += kThreads / kLanes) {
    const T* row = from + o * ld;
    if (whole) {
      for (int i = static_cast<int>(threadIdx.x) % kLanes; i < kInner; i += kLanes)
        tile[kSwap ? i * kStride + o : o * kStride + i] = A(row[i]);
    } else {
      for (int i = static_cast<int>(threadIdx.x) % kLanes; i < kInner; i += kLanes)
        tile[kSwap ? i * kStride + o : o * kStride + i] = o < outer_left && i < inner_left ? A(row[i]) : A(0);
    }
  }
}

// A's tile stays as it lies in memory: [m][k], or [k][m] if A is transposed. B's is always [k][n], for the vectors of columns.
template <bool kTransA, bool kTransB, typename T, typename O>
__global__ void __launch_bounds__(kThreads)
    gemm_hand_kernel(O* __restrict__ c, const T* __restrict__ a, const T* __restrict__ b, std::int64_t m, std::int64_t n,
                     std::int64_t k, std::int64_t lda, std::int64_t ldb, std::int64_t ldc, Acc<T> alpha, Acc<T> beta) {
  using A = Acc<T>;
  constexpr int kStrideA = (kTransA ? kTileM : kTileK) + kPad, kStrideB = kTileN + kPad;
  constexpr int kRowStep = kTransA ? 1 : kStrideA, kDepthStep = kTransA ? kStrideA : 1;  // in A's tile
  constexpr int kAcross = kTileN / kPatchColumns;
  A* a_tile = shared<A, (kTransA ? kTileK : kTileM) * kStrideA, 0>();
  A* b_tile = shared<A, kTileK * kStrideB, 1>();
  const std::int64_t row0 = std::int64_t{blockIdx.x} * kTileM, column0 = std::int64_t{blockIdx.y} * kTileN;

  A sums[kPatches][kPatchRows][kPatchColumns] = {};
  for (std::int64_t k0 = 0; k0 < k; k0 += kTileK) {
    if constexpr (kTransA) {
      load_tile<kTileK, kTileM, kStrideA, false>(a_tile, a + k0 * lda + row0, lda, k - k0, m - row0);
    } else {
      load_tile<kTileM, kTileK, kStrideA, false>(a_tile, a + row0 * lda + k0, lda, m - row0, k - k0);
    }
    if constexpr (kTransB) {
      load_tile<kTileN, kTileK, kStrideB, true>(b_tile, b + column0 * ldb + k0, ldb, n - column0, k - k0);
    } else {
      load_tile<kTileK, kTileN, kStrideB, false>(b_tile, b + k0 * ldb + column0, ldb, k - k0, n - column0);
    }
    __syncthreads();
    for (int p = 0; p < kPatches; ++p) {
      const int patch = static_cast<int>(threadIdx.x) + p * kThreads;
      const A* a_patch = a_tile + patch / kAcross * kPatchRows * kRowStep;
      const A* b_patch = b_tile + patch % kAcross * kPatchColumns;
      REF5D_SIMD
      for (int j = 0; j < kPatchColumns; ++j) {
        A sum[kPatchRows];
        REF5D_UNROLL
        for (int i = 0; i < kPatchRows; ++i) sum[i] = sums[p][i][j];
        for (int d = 0; d < kTileK; ++d) {
          const A right = b_patch[d * kStrideB + j];
          REF5D_UNROLL
          for (int i = 0; i < kPatchRows; ++i) sum[i] += a_patch[i * kRowStep + d * kDepthStep] * right;
        }
        REF5D_UNROLL
        for (int i = 0; i < kPatchRows; ++i) sums[p][i][j] = sum[i];
      }
    }
    __syncthreads();  // before the next step overwrites the tiles
  }

  for (int p = 0; p < kPatches; ++p) {
    const int patch = static_cast<int>(threadIdx.x) + p * kThreads;
    const std::int64_t row = row0 + patch / kAcross * kPatchRows, column = column0 + patch % kAcross * kPatchColumns;
    REF5D_UNROLL
    for (int i = 0; i < kPatchRows; ++i) {
      O* out = c + (row + i) * ldc + column;
      REF5D_UNROLL
      for (int j = 0; j < kPatchColumns; ++j) {
        if (row + i >= m || column + j >= n) continue;
        const A product = alpha * sums[p][i][j];
        out[j] = O(beta == A(0) ? product : product + beta * A(out[j]));  // beta = 0 must not read: it may be NaN
      }
    }
  }
}

}  // namespace

void gemm_hand(Stream& stream, Transpose ta, Transpose tb, double alpha, const Tensor& a, const Tensor& b, double beta,
               const Tensor& c) {
  const GemmSize s = gemm_size(ta, tb, a, b, c);
  const Grid grid(static_cast<unsigned>((s.m + kTileM - 1) / kTileM), static_cast<unsigned>((s.n + kTileN - 1) / kTileN));
  dispatch_with_output(a.dtype(), c.dtype(), [&]<typename T, typename O>() {
    auto run = [&]<bool kTransA, bool kTransB>() {
      launch<gemm_hand_kernel<kTransA, kTransB, T, O>>(stream, grid, unsigned{kThreads}, c.data<O>(), a.data<T>(), b.data<T>(),
                                                       s.m, s.n, s.k, a.ld(), b.ld(), c.ld(), Acc<T>(alpha), Acc<T>(beta));
    };
    const bool left = ta == Transpose::kYes, right = tb == Transpose::kYes;
    if (left && right) return run.template operator()<true, true>();
    if (left) return run.template operator()<true, false>();
    if (right) return run.template operator()<false, true>();
    run.template operator()<false, false>();
  });
}

}  // namespace ref5d
