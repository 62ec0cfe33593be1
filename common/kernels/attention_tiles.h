// Private to the flash attention kernels: tiles in shared memory, and products of them by register tiles.
//
// A block's work on a tile is cut into micro-tiles of a few rows and a few columns, whose sums stay in registers. Thread t
// takes micro-tiles t, t + threads, ...: on a GPU each thread has one or two, on the CPU one thread has them all. Sums that
// live through the whole loop over tiles are a local array of a thread's micro-tiles: registers on a GPU, the stack on the CPU.
#pragma once

#include "common/device/kernel.h"
#include "common/kernels/attention_kernels.h"

namespace ref5d {

inline constexpr int kAttentionThreads = static_cast<int>(block_size(128));
inline constexpr bool kOneThread = kAttentionThreads == 1;
inline constexpr std::size_t kMaxSharedBytes = 96 * 1024;  // of a block: what GPUs since sm_80 have at least

// Tiles of `size` tokens in n tokens, the last one perhaps cut short.
REF5D_HD constexpr std::int64_t tiles_of(std::int64_t n, int size) { return (n + size - 1) / size; }

// Neighbouring elements that are loaded and computed together: a vector register of the CPU (GCC's vector type; with plain
// arrays the same products ran at 5 to 31 GFLOP/s on an AVX2 core, with it at 95), 16 bytes on a GPU.
#if defined(__AVX512F__)
inline constexpr int kLaneBytes = kOneThread ? 64 : 16;
#elif defined(__AVX__)
inline constexpr int kLaneBytes = kOneThread ? 32 : 16;
#else
inline constexpr int kLaneBytes = 16;
#endif
template <typename A>
inline constexpr int kLanes = kLaneBytes / static_cast<int>(sizeof(A));

#if defined(__CUDACC__)
#define REF5D_UNROLL_ON_GPU _Pragma("unroll")
#define REF5D_UNROLL_PRODUCT _Pragma("unroll 4")
template <typename A, int kCount>
struct alignas(kCount * sizeof(A)) Lanes {
  A v[kCount];
};
template <typename A, int kCount>
__device__ __forceinline__ void multiply_add(Lanes<A, kCount>& sum, A a, const Lanes<A, kCount>& b) {
  REF5D_UNROLL
  for (int i = 0; i < kCount; ++i) sum.v[i] += a * b.v[i];
}
template <typename A, int kCount>
__device__ __forceinline__ void multiply(Lanes<A, kCount>& x, A a) {
  REF5D_UNROLL
  for (int i = 0; i < kCount; ++i) x.v[i] *= a;
}
#else
#define REF5D_UNROLL_ON_GPU
#define REF5D_UNROLL_PRODUCT _Pragma("GCC unroll 4")
template <typename A, int kCount>
struct LanesOf {
  using type [[gnu::vector_size(kCount * sizeof(A)), gnu::may_alias]] = A;
};
template <typename A, int kCount>
using Lanes = typename LanesOf<A, kCount>::type;
template <typename V, typename A>
__forceinline__ void multiply_add(V& sum, A a, const V& b) {
  sum += a * b;
}
template <typename V, typename A>
__forceinline__ void multiply(V& x, A a) {
  x *= a;
}
#endif

// kRows x kColumns sums in registers.
template <typename A, int kRows, int kColumns>
struct MicroTile {
  static constexpr int kWidth = kColumns < kLanes<A> ? kColumns : kLanes<A>, kVectors = kColumns / kWidth;
  static_assert(kVectors * kWidth == kColumns);
  using Vector = Lanes<A, kWidth>;
  Vector sum[kRows][kVectors];

  __device__ __forceinline__ void clear() {
    REF5D_UNROLL
    for (int i = 0; i < kRows * kVectors; ++i) sum[i / kVectors][i % kVectors] = Vector{};
  }
  __device__ __forceinline__ void scale_row(int r, A a) {
    REF5D_UNROLL
    for (int c = 0; c < kVectors; ++c) multiply(sum[r][c], a);
  }
  // sum[r][c] += sum over x < kCount of a[r * kRowStride + x * kStep] * b[x * kStride + c].
  template <int kCount, int kRowStride, int kStep, int kStride>
  __device__ __forceinline__ void add_product(const A* __restrict__ a, const A* __restrict__ b) {
    REF5D_UNROLL_PRODUCT
    for (int x = 0; x < kCount; ++x) {
      Vector bx[kVectors];
      REF5D_UNROLL
      for (int c = 0; c < kVectors; ++c) bx[c] = *reinterpret_cast<const Vector*>(b + x * kStride + c * kWidth);
      REF5D_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const A ax = a[r * kRowStride + x * kStep];
        REF5D_UNROLL
        for (int c = 0; c < kVectors; ++c) multiply_add(sum[r][c], ax, bx[c]);
      }
    }
  }
  __device__ __forceinline__ void store(A* to, int stride) const {
    REF5D_UNROLL
    for (int i = 0; i < kRows * kVectors; ++i) {
      const int r = i / kVectors, c = i % kVectors;
      *reinterpret_cast<Vector*>(to + r * stride + c * kWidth) = sum[r][c];
    }
  }
};

// Added to the rows of a tile that threads read scalars from, against bank conflicts.
template <typename A>
inline constexpr int kRowPad = kOneThread ? 0 : kLanes<A>;

// Backward's tile sizes, by the bytes of a token's head: of the side that a block keeps, and of the side it loops over.
constexpr int staying_tokens(std::size_t bytes) { return bytes <= 256 ? 64 : bytes == 512 ? 32 : bytes == 1024 ? 16 : 8; }
constexpr int moving_tokens(std::size_t bytes) { return bytes <= 512 ? 32 : bytes == 1024 ? 16 : 8; }

// Micro-tiles of scores, and of outputs with a head dim of D. A narrow head needs more rows to keep the multipliers busy; with
// AVX-512 there are 32 registers for them.
inline constexpr bool kManyRegisters = kLaneBytes == 64;
inline constexpr int kScoreRows = kManyRegisters ? 8 : 4;
template <typename A>
inline constexpr int kScoreColumns = (kManyRegisters ? 1 : 2) * kLanes<A>;
template <typename A>
using ScoreTile = MicroTile<A, kScoreRows, kScoreColumns<A>>;
template <typename A, int D>
inline constexpr int kOutColumns = D < 2 * kLanes<A> ? D : 2 * kLanes<A>;
template <typename A, int D>
inline constexpr int kOutRows = kManyRegisters || (kOneThread && D < 2 * kLanes<A>) ? 8 : 4;

// A block's [kTokens, D] sums, spread over its threads.
template <typename A, int kTokens, int D>
struct OutTiles {
  static constexpr int kRows = kOutRows<A, D>, kColumns = kOutColumns<A, D>, kAcross = D / kColumns;
  static constexpr int kCount = kTokens / kRows * kAcross;
  static constexpr int kPerThread = (kCount + kAttentionThreads - 1) / kAttentionThreads;
  using Tile = MicroTile<A, kRows, kColumns>;
  static_assert(kTokens % kRows == 0 && kTokenRun % kRows == 0);
  Tile tile[kPerThread];

  // f(tile, its first token, its first column) for each micro-tile of this thread. (Unrolled, or they would not be registers.)
  template <typename F>
  __device__ __forceinline__ void for_each(F&& f) {
    REF5D_UNROLL_ON_GPU
    for (int n = 0; n < kPerThread; ++n) {
      const int t = static_cast<int>(threadIdx.x) + n * kAttentionThreads;
      if (t < kCount) f(tile[n], t / kAcross * kRows, t % kAcross * kColumns);
    }
  }
  __device__ __forceinline__ void clear() {
    for_each([](Tile& t, int, int) { t.clear(); });
  }
  // to[token * ld + column] = sum * scale(token), or += if accumulate, for the tokens and columns that exist.
  template <typename O, typename Scale>
  __device__ __forceinline__ void store(O* __restrict__ to, std::int64_t ld, std::int64_t tokens, std::int64_t columns,
                                        bool accumulate, Scale&& scale) {
    for_each([&](Tile& t, int token, int column) {
      alignas(kLaneBytes) A values[kRows * kColumns];
      t.store(values, kColumns);
      const int width = static_cast<int>(columns - column);
      REF5D_UNROLL_ON_GPU
      for (int r = 0; r < kRows; ++r) {
        if (token + r >= tokens) continue;
        O* row = to + (token + r) * ld + column;
        const A* row_values = values + r * kColumns;
        const A s = scale(token + r);
        if (width >= kColumns) {
          REF5D_SIMD
          for (int c = 0; c < kColumns; ++c) row[c] = O(s * row_values[c] + (accumulate ? A(row[c]) : A(0)));
        } else {
          for (int c = 0; c < kColumns; ++c)
            if (c < width) row[c] = O(s * row_values[c] + (accumulate ? A(row[c]) : A(0)));
        }
      }
    });
  }
};

// A matrix [rows, columns], times a factor, into a tile [kRows, kStride], zero where the matrix ends.
template <int kRows, int kColumns, int kStride, typename A, typename T>
__device__ __forceinline__ void load_tile(A* __restrict__ to, const T* __restrict__ from, std::int64_t ld, std::int64_t rows,
                                          std::int64_t columns, A factor = A(1)) {
  constexpr int kAcross = kAttentionThreads < kColumns ? kAttentionThreads : kColumns, kDown = kAttentionThreads / kAcross;
  const int first_row = static_cast<int>(threadIdx.x) / kAcross, first_column = static_cast<int>(threadIdx.x) % kAcross;
  for (int r = first_row; r < kRows; r += kDown) {
    const T* row = from + r * ld;
    A* out = to + r * kStride;
    if (r < rows && columns >= kColumns) {
      for (int c = first_column; c < kColumns; c += kAcross) out[c] = factor * A(row[c]);
    } else {
      for (int c = first_column; c < kColumns; c += kAcross) out[c] = r < rows && c < columns ? factor * A(row[c]) : A(0);
    }
  }
}
// The same transposed, into [kColumns, kRows]. A GPU's warp reads 4 neighbours of each of 8 rows. The CPU transposes square
// blocks: interleaving the halves of a block moves the upper bit of each element's number to the lower end, and doing so for
// each bit of a row's number swaps row and column. (Plain strided reads took a fifth of dq's time at head dim 32.)
template <int kRows, int kColumns, typename A, typename T>
__device__ __forceinline__ void load_transposed(A* __restrict__ to, const T* __restrict__ from, std::int64_t ld,
                                                std::int64_t rows, std::int64_t columns, A factor = A(1)) {
  if constexpr (kOneThread) {
    constexpr int kSide = kColumns < kLanes<A> ? kColumns : kLanes<A>, kHalf = kSide * kSide / 2;
    static_assert(kRows % kSide == 0 && kColumns % kSide == 0);
    for (int r = 0; r < kRows; r += kSide) {
      for (int c = 0; c < kColumns; c += kSide) {
        alignas(kLaneBytes) A block[2][2 * kHalf];
        int now = 0;
        load_tile<kSide, kSide, kSide>(block[now], from + r * ld + c, ld, rows - r, columns - c, factor);
        REF5D_UNROLL
        for (int bit = 1; bit < kSide; bit *= 2, now ^= 1) {
          const A* halves = block[now];
          A* mixed = block[now ^ 1];
          REF5D_SIMD
          for (int i = 0; i < kHalf; ++i) {
            mixed[2 * i] = halves[i];
            mixed[2 * i + 1] = halves[i + kHalf];
          }
        }
        for (int i = 0; i < kSide; ++i) {
          REF5D_SIMD
          for (int x = 0; x < kSide; ++x) to[(c + i) * kRows + r + x] = block[now][i * kSide + x];
        }
      }
    }
  } else {
    constexpr int kGroup = 8;
    static_assert(kRows % kGroup == 0);
    for (int t = static_cast<int>(threadIdx.x); t < kRows * kColumns; t += kAttentionThreads) {
      const int r = t / (kGroup * kColumns) * kGroup + t % kGroup, c = t / kGroup % kColumns;
      to[c * kRows + r] = r < rows && c < columns ? factor * A(from[r * ld + c]) : A(0);
    }
  }
}
// n values into kCount places, `rest` beyond.
template <int kCount, typename T>
__device__ __forceinline__ void load_values(T* __restrict__ to, const T* __restrict__ from, std::int64_t n, T rest) {
  for (int i = static_cast<int>(threadIdx.x); i < kCount; i += kAttentionThreads) to[i] = i < n ? from[i] : rest;
}

// The log-sum-exp of a tile's queries for backward. A query that sees no key (-inf), and one that does not exist, gets +inf, so
// that exp(score - lse) is 0.
template <int kCount, typename A>
__device__ __forceinline__ void load_lse(A* __restrict__ to, const A* __restrict__ from, std::int64_t n) {
  for (int i = static_cast<int>(threadIdx.x); i < kCount; i += kAttentionThreads)
    to[i] = i < n && from[i] != -kInfinity<A> ? from[i] : kInfinity<A>;
}

}  // namespace ref5d
