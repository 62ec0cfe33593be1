// Private to the .cu files of the cross-entropy and of the router: what a block finds out about a row of logits.
#pragma once

#include <cmath>

#include "common/device/bf16.h"
#include "common/device/launch.h"
#include "common/device/math.h"

namespace ref5d {

// The greatest logit of a row. All threads of the block must call it.
template <typename T>
__device__ __forceinline__ Acc<T> row_max(const T* x, std::int64_t vocab) {
  using A = Acc<T>;
  A greatest = A(-INFINITY);
  REF5D_SIMD_MAX(greatest)
  for (std::int64_t i = threadIdx.x; i < vocab; i += blockDim.x) greatest = max(greatest, A(x[i]));
  return block_max(greatest);
}

// The sum of exp(logit - greatest). All threads of the block must call it.
template <typename T>
__device__ __forceinline__ Acc<T> row_sum_exp(const T* x, std::int64_t vocab, Acc<T> greatest) {
  using A = Acc<T>;
  A sum = 0;
  REF5D_SIMD_SUM(sum)
  for (std::int64_t i = threadIdx.x; i < vocab; i += blockDim.x) sum += exp_of(A(x[i]) - greatest);
  return block_sum(sum);
}

}  // namespace ref5d
