// kernel.h under the emulator: a GPU's geometry. Threads are fibers (emu/block.h); the barriers, shuffles and votes of CUDA are
// functions by CUDA's names, which say the line that called them.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

// A kernel's loads stay in the kernel: the compiler would pass *p for p where it could, and the caller is not watched.
#ifdef __clang__  // clang-tidy does not know it
#define __global__
#else
#define __global__ __attribute__((noipa))
#endif
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define __shared__ static thread_local  // see shared_variables.h; the suite's own kernels have shared<T, N>()
#define REF5D_UNROLL
#define REF5D_SIMD
#define REF5D_SIMD_SUM(...)
#define REF5D_SIMD_MAX(...)

namespace ref5d {

struct KernelIndex {
  unsigned x, y, z;
};
inline constexpr unsigned kWarpSize = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;

namespace emu {
// Of the running thread, for which they never change.
[[gnu::const]] KernelIndex thread_index();
[[gnu::const]] KernelIndex block_index();
[[gnu::const]] KernelIndex block_threads();
[[gnu::const]] KernelIndex grid_blocks();

void barrier(const char* file, int line);
void warp_barrier(std::uint32_t mask, const char* file, int line);
std::uint32_t ballot(std::uint32_t mask, bool vote, const char* file, int line);
// Which of the warp's lanes `source` means is the caller's business; values have at most eight bytes.
std::uint64_t shuffle(std::uint32_t mask, std::uint64_t value, int source, const char* file, int line);
std::uint32_t active_lanes();
// One array for a block and a tag.
void* shared_array(const void* tag, std::size_t bytes, std::size_t alignment);
[[gnu::pure]] void* dynamic_shared_memory();
// Called by a kernel before an atomic operation.
void before_atomic(const void* at, std::size_t bytes, bool floating);

#define REF5D_CALLER const char *file = __builtin_FILE(), int line = __builtin_LINE()

__forceinline__ int own_lane() { return static_cast<int>(thread_index().x % kWarpSize); }
// The lane that `lane` takes a value from (PTX ISA, shfl): a warp is cut into segments of `width` lanes, a power of two, and
// who would reach beyond its own keeps its own value; a butterfly may reach into earlier ones.
__forceinline__ int lane_at(int lane, int index, int width) { return (lane & -width) | (index & (width - 1)); }
__forceinline__ int lane_above(int lane, int source, int width) { return source <= (lane | (width - 1)) ? source : lane; }
__forceinline__ int lane_below(int lane, int source, int width) { return source >= (lane & -width) ? source : lane; }

template <typename T>
__forceinline__ T shuffle_value(std::uint32_t mask, T value, int source, const char* file, int line) {
  static_assert(sizeof(T) <= 8);
  std::uint64_t bits = 0;
  __builtin_memcpy(&bits, &value, sizeof(T));
  bits = shuffle(mask, bits, source, file, line);
  __builtin_memcpy(&value, &bits, sizeof(T));
  return value;
}
}  // namespace emu

#define threadIdx (::ref5d::emu::thread_index())
#define blockIdx (::ref5d::emu::block_index())
#define blockDim (::ref5d::emu::block_threads())
#define gridDim (::ref5d::emu::grid_blocks())

__forceinline__ void __syncthreads(REF5D_CALLER) { emu::barrier(file, line); }
__forceinline__ void __syncwarp(unsigned mask = kAllLanes, REF5D_CALLER) { emu::warp_barrier(mask, file, line); }
__forceinline__ unsigned __activemask() { return emu::active_lanes(); }
__forceinline__ unsigned __ballot_sync(unsigned mask, bool vote, REF5D_CALLER) { return emu::ballot(mask, vote, file, line); }
__forceinline__ bool __any_sync(unsigned mask, bool vote, REF5D_CALLER) { return emu::ballot(mask, vote, file, line) != 0; }
__forceinline__ bool __all_sync(unsigned mask, bool vote, REF5D_CALLER) { return emu::ballot(mask, !vote, file, line) == 0; }
template <typename T>
__forceinline__ T __shfl_sync(unsigned mask, T value, int lane, int width = kWarpSize, REF5D_CALLER) {
  return emu::shuffle_value(mask, value, emu::lane_at(emu::own_lane(), lane, width), file, line);
}
template <typename T>
__forceinline__ T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = kWarpSize, REF5D_CALLER) {
  const int lane = emu::own_lane();
  return emu::shuffle_value(mask, value, emu::lane_above(lane, (lane ^ lanes) & 31, width), file, line);
}
template <typename T>
__forceinline__ T __shfl_up_sync(unsigned mask, T value, unsigned lanes, int width = kWarpSize, REF5D_CALLER) {
  const int lane = emu::own_lane();
  return emu::shuffle_value(mask, value, emu::lane_below(lane, lane - static_cast<int>(lanes & 31), width), file, line);
}
template <typename T>
__forceinline__ T __shfl_down_sync(unsigned mask, T value, unsigned lanes, int width = kWarpSize, REF5D_CALLER) {
  const int lane = emu::own_lane();
  return emu::shuffle_value(mask, value, emu::lane_above(lane, lane + static_cast<int>(lanes & 31), width), file, line);
}
template <typename T>
__forceinline__ T warp_shuffle_xor(T v, unsigned lane_mask, REF5D_CALLER) {
  return __shfl_xor_sync(kAllLanes, v, static_cast<int>(lane_mask), kWarpSize, file, line);
}

inline constexpr int warpSize = static_cast<int>(kWarpSize);
__forceinline__ int __popc(unsigned v) { return std::popcount(v); }
__forceinline__ int __clz(int v) { return std::countl_zero(static_cast<unsigned>(v)); }
__forceinline__ int __ffs(int v) { return v == 0 ? 0 : std::countr_zero(static_cast<unsigned>(v)) + 1; }
__forceinline__ float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
__forceinline__ float __expf(float x) { return std::exp(x); }
__forceinline__ float __logf(float x) { return std::log(x); }
__forceinline__ float __fdividef(float x, float y) { return x / y; }

__forceinline__ void __threadfence() {}
__forceinline__ void __threadfence_block() {}
template <typename T>
__forceinline__ T __ldg(const T* p) {
  return *p;
}

// Integers only: a sum of floating-point numbers would depend on the order in which threads come.
#define REF5D_ATOMIC(name, expression)                                    \
  template <typename T>                                                   \
  [[gnu::no_sanitize_thread, gnu::noinline]] T name##_value(T* at, T v) { \
    const T old = *at;                                                    \
    *at = expression;                                                     \
    return old;                                                           \
  }                                                                       \
  template <typename T>                                                   \
  __forceinline__ T name(T* at, std::type_identity_t<T> v) {              \
    emu::before_atomic(at, sizeof(T), std::is_floating_point_v<T>);       \
    return name##_value(at, v);                                           \
  }
REF5D_ATOMIC(atomicAdd, T(old + v))
REF5D_ATOMIC(atomicSub, T(old - v))
REF5D_ATOMIC(atomicMin, v < old ? v : old)
REF5D_ATOMIC(atomicMax, v > old ? v : old)
REF5D_ATOMIC(atomicAnd, T(old& v))
REF5D_ATOMIC(atomicOr, T(old | v))
REF5D_ATOMIC(atomicXor, T(old ^ v))
REF5D_ATOMIC(atomicExch, v)
#undef REF5D_ATOMIC
template <typename T>
[[gnu::no_sanitize_thread, gnu::noinline]] T atomic_cas_value(T* at, T expected, T v) {
  const T old = *at;
  if (old == expected) *at = v;
  return old;
}
template <typename T>
__forceinline__ T atomicCAS(T* at, std::type_identity_t<T> expected, std::type_identity_t<T> v) {
  emu::before_atomic(at, sizeof(T), std::is_floating_point_v<T>);
  return atomic_cas_value(at, expected, v);
}

template <typename T, std::size_t kCount, int kSlot = 0>
__forceinline__ T* shared() {
  static char kTag;
  return static_cast<T*>(emu::shared_array(&kTag, sizeof(T) * kCount, alignof(T)));
}
template <typename T>
__forceinline__ T* dynamic_shared() {
  return static_cast<T*>(emu::dynamic_shared_memory());
}

constexpr unsigned block_size(unsigned n) { return n; }
inline unsigned grid_for(std::int64_t n, unsigned threads = 256) {
  return static_cast<unsigned>(std::clamp<std::int64_t>((n + threads - 1) / threads, 1, 4096));
}

// Strided by the grid, as on a GPU.
class GridRange {
 public:
  explicit GridRange(std::int64_t n) : n_(n) {}
  struct Iterator {
    std::int64_t i, step;
    std::int64_t operator*() const { return i; }
    Iterator& operator++() {
      i += step;
      return *this;
    }
    bool operator!=(const Iterator& o) const { return i < o.i; }
  };
  [[nodiscard]] Iterator begin() const {
    return {static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x,
            static_cast<std::int64_t>(gridDim.x) * blockDim.x};
  }
  [[nodiscard]] Iterator end() const { return {n_, 0}; }

 private:
  std::int64_t n_;
};
inline GridRange grid_range(std::int64_t n) { return GridRange(n); }

using std::max;
using std::min;

}  // namespace ref5d
