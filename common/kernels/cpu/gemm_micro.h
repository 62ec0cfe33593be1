// What gemm.cpp computes with: a tile of C in registers, and operands packed so that the tile reads memory in order.
//
// After Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (2008), and BLIS (Van Zee and van de Geijn,
// 2015). A tile is 6 rows by two vectors: 12 sums, 2 vectors of B and one value of A at a time fill the 16 registers of AVX2.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/device/bf16.h"

namespace ref5d::gemm_backend {

#if defined(__AVX512F__)
inline constexpr int kVectorBytes = 64;
#elif defined(__AVX__)
inline constexpr int kVectorBytes = 32;
#else
inline constexpr int kVectorBytes = 16;
#endif

inline constexpr int kTileRows = 6;
template <typename T>
inline constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(T));
template <typename T>
inline constexpr int kTileColumns = 2 * kLanes<T>;

// K is summed in blocks of at most this: a block of one tile's B (16 KB in fp32 with AVX2) stays in the first-level cache, or
// streams from the second (32 KB with AVX-512). The same for both, so that they round alike.
inline constexpr std::int64_t kDepth = 256;

template <typename T>
struct Vector {
  typedef T Aligned __attribute__((vector_size(kVectorBytes), may_alias));
  typedef T Unaligned __attribute__((vector_size(kVectorBytes), aligned(alignof(T)), may_alias));
};

// A packed operand is a row of panels; panel p holds `width` rows of op(A) (or columns of op(B)) for every k of a block,
// [k][width]. A line of memory between panels keeps them out of each other's cache sets.
template <typename T>
[[nodiscard]] inline std::int64_t panel_size(int width, std::int64_t depth) {
  return width * depth + 64 / static_cast<std::int64_t>(sizeof(T));
}

// An operand in memory: element (k, i) is at[k * k_stride + i * stride], where i counts op(A)'s rows or op(B)'s columns.
template <typename S>
struct Operand {
  const S* at;
  std::int64_t k_stride, stride;
  [[nodiscard]] Operand from(std::int64_t k, std::int64_t i) const {
    return {at + k * k_stride + i * stride, k_stride, stride};
  }
};

// Packs `rows` values of k and `count` of i into panels made for `depth` of k; the last panel is filled up with zeros.
// kNeighbours: the stride of i is 1, known to the compiler, and `group` rows of k are taken at a time so that rows of memory
// are read in order; else columns are, a whole panel at a time.
template <int kWidth, bool kNeighbours, typename T, typename S>
void pack_with(T* to, const Operand<S>& from, std::int64_t depth, std::int64_t rows, std::int64_t count, std::int64_t group) {
  const std::int64_t size = panel_size<T>(kWidth, depth), whole = count / kWidth, stride = kNeighbours ? 1 : from.stride;
  for (std::int64_t k0 = 0; k0 < rows; k0 += group) {
    const std::int64_t k1 = std::min(rows, k0 + group);
    for (std::int64_t p = 0; p < whole; ++p) {
      const S* __restrict row = from.at + p * kWidth * stride + k0 * from.k_stride;
      T* __restrict out = to + p * size + k0 * kWidth;
      for (std::int64_t k = k0; k < k1; ++k, row += from.k_stride, out += kWidth) {
        if constexpr (kNeighbours) __builtin_prefetch(row + 2 * group * from.k_stride);
        for (int j = 0; j < kWidth; ++j) out[j] = T(Acc<S>(row[j * stride]));
      }
    }
    for (std::int64_t k = k0; k < k1 && whole * kWidth < count; ++k) {
      T* const out = to + whole * size + k * kWidth;
      for (std::int64_t j = 0, i = whole * kWidth; j < kWidth; ++j, ++i)
        out[j] = i < count ? T(Acc<S>(from.at[k * from.k_stride + i * stride])) : T(0);
    }
  }
}
template <int kWidth, typename T, typename S>
void pack(T* to, const Operand<S>& from, std::int64_t depth, std::int64_t rows, std::int64_t count) {
  if (from.stride == 1) return pack_with<kWidth, true>(to, from, depth, rows, count, 8);
  pack_with<kWidth, false>(to, from, depth, rows, count, rows);
}

// Where a tile goes: C = alpha * sums, or C += alpha * sums, for the rows and columns that exist. The sums are scaled first, on
// their own: in alpha * sums + beta * C, which product is fused with the sum would be the compiler's choice, here and there.
template <typename T>
struct Output {
  T* c;
  std::int64_t ldc, rows, columns;
  T alpha;
  bool add;
};

// A tile's sums, in registers while they are indexed by constants alone.
template <typename T>
using Sums = typename Vector<T>::Aligned[kTileRows][2];

template <typename T>
inline void store_whole(const Sums<T>& sums, const Output<T>& out) {
  using U = typename Vector<T>::Unaligned;
  if (!out.add) {
#pragma GCC unroll 6
    for (int i = 0; i < kTileRows; ++i) {
      U* const c = reinterpret_cast<U*>(out.c + i * out.ldc);
      c[0] = sums[i][0];
      c[1] = sums[i][1];
    }
  } else {
#pragma GCC unroll 6
    for (int i = 0; i < kTileRows; ++i) {
      U* const c = reinterpret_cast<U*>(out.c + i * out.ldc);
      c[0] += sums[i][0];
      c[1] += sums[i][1];
    }
  }
}

// At the lower and right edges of C.
template <typename T>
[[gnu::noinline]] void store_part(const Sums<T>& sums, const Output<T>& out) {
  for (std::int64_t i = 0; i < out.rows; ++i) {
    T* const c = out.c + i * out.ldc;
    for (std::int64_t j = 0; j < out.columns; ++j) {
      const T sum = sums[i][j / kLanes<T>][j % kLanes<T>];
      c[j] = out.add ? c[j] + sum : sum;
    }
  }
}

// One tile, summed over k in order: every element is one chain of fused multiply-adds, whatever tile it lies in. b is a panel;
// a is one too (kPacked), or 6 rows of A as they lie, lda apart. Not inlined, or the registers would not suffice for its loop.
template <typename T, bool kPacked>
[[gnu::noinline]] void tile(std::int64_t depth, const T* __restrict__ a, std::int64_t lda, const T* __restrict__ b,
                            const Output<T>& out) {
  using V = typename Vector<T>::Aligned;
  constexpr std::int64_t kLine = 64 / sizeof(T);
  for (int i = 0; i < kTileRows; ++i) __builtin_prefetch(out.c + i * out.ldc, 1);
  Sums<T> sums = {};
  for (std::int64_t k = 0; k < depth; ++k, b += kTileColumns<T>) {
    if constexpr (!kPacked) {
      if (k % kLine == 0) {
        for (int i = 0; i < kTileRows; ++i) __builtin_prefetch(a + (i + kTileRows) * lda + k);  // the next tile's rows
      }
    }
    const V b0 = *reinterpret_cast<const V*>(b), b1 = *reinterpret_cast<const V*>(b + kLanes<T>);
#pragma GCC unroll 6
    for (int i = 0; i < kTileRows; ++i) {
      const T x = kPacked ? a[k * kTileRows + i] : a[i * lda + k];
      sums[i][0] += x * b0;
      sums[i][1] += x * b1;
    }
  }
  if (out.alpha != 1) {
#pragma GCC unroll 6
    for (int i = 0; i < kTileRows; ++i) sums[i][0] *= out.alpha, sums[i][1] *= out.alpha;
  }
  if (out.rows == kTileRows && out.columns == kTileColumns<T>) {
    store_whole<T>(sums, out);
  } else {
    Sums<T> copy;
    for (int i = 0; i < kTileRows; ++i) copy[i][0] = sums[i][0], copy[i][1] = sums[i][1];
    store_part<T>(copy, out);
  }
}

}  // namespace ref5d::gemm_backend
