// A tile of a matrix product, as one block computes it: the classic exercise. The block has a 64 x 64 tile of C, and walks
// along K in steps of 16. For each step it brings a tile of A and a tile of B into shared memory, where every number is used 64
// times, and each thread multiplies its own small patch of the tile out of registers, where it is used once more per row or
// column.
//
// On a GPU 256 threads have a patch of 4 x 4 each. On the CPU the one thread has eight patches of 8 x 64: a vector of columns
// against eight rows fills the registers, and the loop over columns is the one that vectorises.
#pragma once

#include <cstdint>

#include "common/device/kernel.h"
#include "common/kernels/dispatch.h"
#include "common/kernels/gemm.h"

namespace ref5d::gemm_tile {

inline constexpr int kTileM = 64, kTileN = 64, kTileK = 16;
inline constexpr int kThreads = static_cast<int>(block_size(256));
inline constexpr int kPatchRows = kThreads == 1 ? 8 : 4, kPatchColumns = kThreads == 1 ? kTileN : 4;
inline constexpr int kPatches = kTileM * kTileN / (kPatchRows * kPatchColumns) / kThreads;  // of a thread
// A row of a tile in shared memory is a little longer than it needs to be, so that a column does not lie in one bank.
inline constexpr int kPad = kThreads == 1 ? 0 : 4;

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

// C [m, n] = alpha op(A) op(B) + beta C.
template <typename T, typename O>
struct Product {
  O* c;
  const T *a, *b;
  std::int64_t m, n, k, lda, ldb, ldc;
};

// How many tiles cover so many rows or columns.
inline unsigned tiles_of(std::int64_t elements, int of_tile) {
  return static_cast<unsigned>((elements + of_tile - 1) / of_tile);
}

// A's tile stays as it lies in memory: [m][k], or [k][m] if A is transposed. B's is always [k][n], for the vectors of columns.
// All threads of a block of kThreads call it.
template <bool kTransA, bool kTransB, typename T, typename O>
__device__ __forceinline__ void multiply(const Product<T, O>& p, std::int64_t row0, std::int64_t column0, Acc<T> alpha,
                                         Acc<T> beta) {
  using A = Acc<T>;
  O* __restrict__ c = p.c;
  const T* __restrict__ a = p.a;
  const T* __restrict__ b = p.b;
  const std::int64_t m = p.m, n = p.n, k = p.k, lda = p.lda, ldb = p.ldb, ldc = p.ldc;
  constexpr int kStrideA = (kTransA ? kTileM : kTileK) + kPad, kStrideB = kTileN + kPad;
  constexpr int kRowStep = kTransA ? 1 : kStrideA, kDepthStep = kTransA ? kStrideA : 1;  // in A's tile
  constexpr int kAcross = kTileN / kPatchColumns;
  A* a_tile = shared<A, (kTransA ? kTileK : kTileM) * kStrideA, 0>();
  A* b_tile = shared<A, kTileK * kStrideB, 1>();

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
    for (int i_patch = 0; i_patch < kPatches; ++i_patch) {
      const int patch = static_cast<int>(threadIdx.x) + i_patch * kThreads;
      const A* a_patch = a_tile + patch / kAcross * kPatchRows * kRowStep;
      const A* b_patch = b_tile + patch % kAcross * kPatchColumns;
      REF5D_SIMD
      for (int j = 0; j < kPatchColumns; ++j) {
        A sum[kPatchRows];
        REF5D_UNROLL
        for (int i = 0; i < kPatchRows; ++i) sum[i] = sums[i_patch][i][j];
        for (int d = 0; d < kTileK; ++d) {
          const A right = b_patch[d * kStrideB + j];
          REF5D_UNROLL
          for (int i = 0; i < kPatchRows; ++i) sum[i] += a_patch[i * kRowStep + d * kDepthStep] * right;
        }
        REF5D_UNROLL
        for (int i = 0; i < kPatchRows; ++i) sums[i_patch][i][j] = sum[i];
      }
    }
    __syncthreads();  // before the next step overwrites the tiles
  }

  for (int i_patch = 0; i_patch < kPatches; ++i_patch) {
    const int patch = static_cast<int>(threadIdx.x) + i_patch * kThreads;
    const std::int64_t row = row0 + patch / kAcross * kPatchRows, column = column0 + patch % kAcross * kPatchColumns;
    REF5D_UNROLL
    for (int i = 0; i < kPatchRows; ++i) {
      O* out = c + (row + i) * ldc + column;
      REF5D_UNROLL
      for (int j = 0; j < kPatchColumns; ++j) {
        if (row + i >= m || column + j >= n) continue;
        const A product = alpha * sums[i_patch][i][j];
        out[j] = O(beta == A(0) ? product : product + beta * A(out[j]));  // beta = 0 must not read: it may be NaN
      }
    }
  }
}

// Calls f<kTransA, kTransB>().
template <typename F>
void dispatch_transposes(Transpose ta, Transpose tb, F&& f) {
  const bool left = ta == Transpose::kYes, right = tb == Transpose::kYes;
  if (left && right) return f.template operator()<true, true>();
  if (left) return f.template operator()<true, false>();
  if (right) return f.template operator()<false, true>();
  f.template operator()<false, false>();
}

}  // namespace ref5d::gemm_tile
