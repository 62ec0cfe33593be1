#include <cmath>
#include <stdexcept>
#include <string>

#include "common/device/launch.h"
#include "common/device/math.h"
#include "common/kernels/attention_kernels.h"
#include "common/kernels/attention_merge.h"
#include "common/kernels/dispatch.h"

namespace ref5d {
namespace {

// Two results that both have keys: their log-sum-exp, and what the two o's are multiplied by. The greater one's exponential is
// 1, so there is one to compute.
template <typename A>
__device__ inline A merged_lse(A own, A part, bool without_maximum) {
  if (without_maximum) return std::log(exp_of(own) + exp_of(part));
  const A greatest = own > part ? own : part, least = own > part ? part : own;
  return greatest + std::log(1 + exp_of_negative(least - greatest));
}
template <typename A>
struct MergeWeights {
  A own, part;
};
template <typename A>
__device__ inline MergeWeights<A> merge_weights(A own, A part, bool without_maximum) {
  if (without_maximum) {
    const A merged = merged_lse(own, part, true);
    return {exp_of(own - merged), exp_of(part - merged)};
  }
  const A lesser = exp_of_negative(own > part ? part - own : own - part);
  const A greater_weight = 1 / (1 + lesser), lesser_weight = lesser / (1 + lesser);
  return own > part ? MergeWeights<A>{greater_weight, lesser_weight} : MergeWeights<A>{lesser_weight, greater_weight};
}

// One block per token. A warp takes a head at a time, and its lanes the channels: on the CPU a loop over them that vectorises.
template <typename A>
__global__ void attention_merge_kernel(A* __restrict__ o, const A* __restrict__ part_o, const A* __restrict__ lse,
                                       const A* __restrict__ part_lse, std::int64_t q_len, std::int64_t heads,
                                       std::int64_t head_dim, std::int64_t o_ld, std::int64_t part_ld, bool without_maximum) {
  const std::int64_t token = blockIdx.x, b = token / q_len, s = token % q_len;
  const std::int64_t lane = threadIdx.x % kWarpSize, warps = blockDim.x / kWarpSize;
  for (std::int64_t head = threadIdx.x / kWarpSize; head < heads; head += warps) {
    const std::int64_t row = (b * heads + head) * q_len + s;
    const A own_lse = lse[row], other_lse = part_lse[row];
    A* __restrict__ to = o + token * o_ld + head * head_dim;
    const A* __restrict__ from = part_o + token * part_ld + head * head_dim;
    // Branches rather than weights of 0 and 1: what has no keys may hold anything, and 0 times NaN is NaN.
    const bool own_keys = own_lse != -kInfinity<A>, other_keys = other_lse != -kInfinity<A>;
    if (own_keys && other_keys) {
      const MergeWeights<A> w = merge_weights(own_lse, other_lse, without_maximum);
      REF5D_SIMD
      for (std::int64_t d = lane; d < head_dim; d += kWarpSize) to[d] = w.own * to[d] + w.part * from[d];
    } else if (other_keys) {
      REF5D_SIMD
      for (std::int64_t d = lane; d < head_dim; d += kWarpSize) to[d] = from[d];
    } else if (!own_keys) {
      REF5D_SIMD
      for (std::int64_t d = lane; d < head_dim; d += kWarpSize) to[d] = 0;
    }
  }
}

template <typename A>
__global__ void attention_merge_lse_kernel(A* __restrict__ lse, const A* __restrict__ part_lse, std::int64_t n,
                                           bool without_maximum) {
  for (std::int64_t i : grid_range(n)) {
    const A own = lse[i], other = part_lse[i];
    if (other == -kInfinity<A>) continue;
    lse[i] = own == -kInfinity<A> ? other : merged_lse(own, other, without_maximum);
  }
}

}  // namespace

void attention_merge(Stream& stream, const AttentionShape& shape, const Tensor& o, const Tensor& lse, const Tensor& part_o,
                     const Tensor& part_lse, bool without_maximum) {
  if (o.dtype() != accumulator_of(o.dtype()))
    throw std::logic_error("attention_merge is for results in an accumulator's dtype, fp32 or fp64, not " +
                           std::string(dtype_name(o.dtype())));
  const std::int64_t tokens = shape.batch * shape.q_len;
  for (const Tensor* t : {&o, &part_o}) expect(*t, {tokens, shape.heads * shape.head_dim}, o.dtype(), "attention_merge o");
  for (const Tensor* t : {&lse, &part_lse}) {
    expect(*t, {shape.batch, shape.heads, shape.q_len}, o.dtype(), "attention_merge lse");
    expect_contiguous(*t, "attention_merge lse");
  }
  dispatch(o.dtype(), [&]<typename T>() {
    using A = Acc<T>;
    // o first, by the old lse. Two launches, so that no thread reads an lse that another one has already replaced.
    launch<attention_merge_kernel<A>>(stream, unsigned(tokens), block_size(256), o.data<A>(), part_o.data<A>(), lse.data<A>(),
                                      part_lse.data<A>(), shape.q_len, shape.heads, shape.head_dim, o.ld(), part_o.ld(),
                                      without_maximum);
    launch<attention_merge_lse_kernel<A>>(stream, grid_for(lse.numel()), block_size(256), lse.data<A>(), part_lse.data<A>(),
                                          lse.numel(), without_maximum);
  });
}

}  // namespace ref5d
