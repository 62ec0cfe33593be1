// kernel.h for the CPU: one thread per block, a warp of one. Thread numbers and block sizes are compile-time
// constants, so block-strided loops become plain loops that vectorise; barriers and shuffles vanish.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define REF5D_UNROLL _Pragma("GCC unroll 16")
#define REF5D_SIMD _Pragma("omp simd")
#define REF5D_PRAGMA(x) _Pragma(#x)
#define REF5D_SIMD_SUM(...) REF5D_PRAGMA(omp simd reduction(+ : __VA_ARGS__))
#define REF5D_SIMD_MAX(...) REF5D_PRAGMA(omp simd reduction(max : __VA_ARGS__))

namespace ref5d {

struct KernelIndex {
  unsigned x, y, z;
};
namespace cpu {
constinit inline thread_local KernelIndex block_index{0, 0, 0};
constinit inline thread_local KernelIndex grid_size{1, 1, 1};
constinit inline thread_local std::byte* dynamic_shared_memory = nullptr;
}  // namespace cpu

inline constexpr KernelIndex threadIdx{0, 0, 0};
inline constexpr KernelIndex blockDim{1, 1, 1};
#define blockIdx (::ref5d::cpu::block_index)
#define gridDim (::ref5d::cpu::grid_size)
inline constexpr unsigned kWarpSize = 1;

inline void __syncthreads() {}
inline void __syncwarp(unsigned = 0xffffffffu) {}
template <typename T>
inline T warp_shuffle_xor(T v, unsigned) {
  return v;
}

// A shared array: one per kernel thread, so a static thread_local buffer that outlives the block.
template <typename T, std::size_t kCount, int kSlot = 0>
inline T* shared() {
  alignas(64) static thread_local T array[kCount];
  return array;
}
template <typename T>
inline T* dynamic_shared() {
  return reinterpret_cast<T*>(cpu::dynamic_shared_memory);
}

constexpr unsigned block_size(unsigned) { return 1; }
// Elements per block below which splitting costs more than it brings.
inline constexpr std::int64_t kMinStretch = 8192;
inline unsigned grid_for(std::int64_t n, unsigned = 256) {
  return static_cast<unsigned>(std::clamp<std::int64_t>(n / kMinStretch, 1, 64));
}

// One contiguous stretch per block.
class GridRange {
 public:
  explicit GridRange(std::int64_t n) {
    const std::int64_t blocks = gridDim.x, b = blockIdx.x;
    const std::int64_t stretch = (n + blocks - 1) / blocks;
    begin_ = std::min(n, b * stretch);
    end_ = std::min(n, begin_ + stretch);
  }
  struct Iterator {
    std::int64_t i;
    std::int64_t operator*() const { return i; }
    Iterator& operator++() {
      ++i;
      return *this;
    }
    bool operator!=(const Iterator& o) const { return i != o.i; }
  };
  [[nodiscard]] Iterator begin() const { return {begin_}; }
  [[nodiscard]] Iterator end() const { return {end_}; }

 private:
  std::int64_t begin_, end_;
};
inline GridRange grid_range(std::int64_t n) { return GridRange(n); }

using std::max;
using std::min;

}  // namespace ref5d
