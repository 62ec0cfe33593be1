// kernel.h on the GPU.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#define REF5D_UNROLL _Pragma("unroll")
#define REF5D_SIMD
#define REF5D_SIMD_SUM(...)
#define REF5D_SIMD_MAX(...)

namespace ref5d {

inline constexpr unsigned kWarpSize = 32;

template <typename T>
__device__ inline T warp_shuffle_xor(T v, unsigned lane_mask) {
  return __shfl_xor_sync(0xffffffffu, v, static_cast<int>(lane_mask));
}

template <typename T, std::size_t kCount, int kSlot = 0>
__device__ inline T* shared() {
  __shared__ T array[kCount];
  return array;
}
template <typename T>
__device__ inline T* dynamic_shared() {
  extern __shared__ __align__(16) unsigned char dynamic_shared_memory[];
  return reinterpret_cast<T*>(dynamic_shared_memory);
}

constexpr unsigned block_size(unsigned n) { return n; }
// Enough blocks to fill any GPU; grid-strided loops cover the rest.
inline unsigned grid_for(std::int64_t n, unsigned threads = 256) {
  const std::int64_t blocks = (n + threads - 1) / threads;
  return static_cast<unsigned>(blocks < 1 ? 1 : blocks > 4096 ? 4096 : blocks);
}

// Strided by the grid, so that neighbouring threads touch neighbouring elements.
class GridRange {
 public:
  __device__ explicit GridRange(std::int64_t n) : n_(n) {}
  struct Iterator {
    std::int64_t i, step;
    __device__ std::int64_t operator*() const { return i; }
    __device__ Iterator& operator++() {
      i += step;
      return *this;
    }
    __device__ bool operator!=(const Iterator& o) const { return i < o.i; }
  };
  __device__ Iterator begin() const {
    return {static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x,
            static_cast<std::int64_t>(gridDim.x) * blockDim.x};
  }
  __device__ Iterator end() const { return {n_, 0}; }

 private:
  std::int64_t n_;
};
__device__ inline GridRange grid_range(std::int64_t n) { return GridRange(n); }

}  // namespace ref5d
