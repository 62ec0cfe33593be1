// Reductions over a warp and a block, in a fixed order: the same input gives the same bits.
#pragma once

namespace ref5d {

struct Sum {
  template <typename T>
  __device__ static T apply(T a, T b) {
    return a + b;
  }
};
struct Max {
  template <typename T>
  __device__ static T apply(T a, T b) {
    return a > b ? a : b;
  }
};

// Butterfly: after log2(warp) steps every lane holds the result.
template <typename Op, typename T>
__device__ inline T warp_reduce(T v) {
  for (unsigned offset = kWarpSize / 2; offset > 0; offset /= 2) v = Op::apply(v, warp_shuffle_xor(v, offset));
  return v;
}
template <typename T>
__device__ inline T warp_sum(T v) {
  return warp_reduce<Sum>(v);
}
template <typename T>
__device__ inline T warp_max(T v) {
  return warp_reduce<Max>(v);
}

// Each warp reduces, leaves its result in shared memory, and every thread combines those in warp order.
// All threads of the block must call it. blockDim.x is a multiple of the warp size (or 1 on the CPU).
template <typename Op, typename T>
__device__ inline T block_reduce(T v) {
  v = warp_reduce<Op>(v);
  const unsigned warps = blockDim.x / kWarpSize;
  if (warps == 1) return v;
  T* per_warp = shared<T, 32, 1000>();
  __syncthreads();  // a previous reduction may still be read
  if (threadIdx.x % kWarpSize == 0) per_warp[threadIdx.x / kWarpSize] = v;
  __syncthreads();
  T total = per_warp[0];
  for (unsigned w = 1; w < warps; ++w) total = Op::apply(total, per_warp[w]);
  return total;
}
template <typename T>
__device__ inline T block_sum(T v) {
  return block_reduce<Sum>(v);
}
template <typename T>
__device__ inline T block_max(T v) {
  return block_reduce<Max>(v);
}

}  // namespace ref5d
