#include "common/comm/reduce.h"
#include "common/device/launch.h"
#include "common/kernels/dispatch.h"

namespace ref5d {
namespace {

// Elements of a block: a stretch that stays in the first cache while the parts are added.
constexpr std::int64_t kStretch = 4096;

template <typename A, bool kMax>
__device__ __forceinline__ A combine(A a, A b) {
  return kMax ? (a > b ? a : b) : a + b;
}

template <typename T, typename A, bool kMax>
__global__ void reduce_in_rank_order_kernel(T* out, const T* own, const T* __restrict__ received, std::int64_t n, int rank,
                                            int parts) {
  const std::int64_t begin = blockIdx.x * kStretch, count = min(kStretch, n - begin);
  // One part after the other, so that the loops vectorise; every thread keeps to its own elements.
  A* sum = shared<A, kStretch>();
  for (int r = 0; r < parts; ++r) {
    const T* part = (r == rank ? own : received + std::int64_t(r < rank ? r : r - 1) * n) + begin;
    if (r == 0) {  // NOLINT(bugprone-branch-clone): the pragmas are alike, the loops are not
      REF5D_SIMD
      for (std::int64_t i = threadIdx.x; i < count; i += blockDim.x) sum[i] = A(part[i]);
    } else {
      REF5D_SIMD
      for (std::int64_t i = threadIdx.x; i < count; i += blockDim.x) sum[i] = combine<A, kMax>(sum[i], A(part[i]));
    }
  }
  REF5D_SIMD
  for (std::int64_t i = threadIdx.x; i < count; i += blockDim.x) out[begin + i] = T(sum[i]);
}

template <typename T, typename A>
void launch_reduce(Stream& stream, const Tensor& out, const Tensor& own, const Tensor& received, int rank, ReduceOp op) {
  const std::int64_t n = out.numel();
  const int parts = int(received.dim(0)) + 1;
  const auto blocks = unsigned((n + kStretch - 1) / kStretch);
  if (op == ReduceOp::kMax) {
    launch<reduce_in_rank_order_kernel<T, A, true>>(stream, blocks, block_size(256), out.data<T>(), own.data<T>(),
                                                    received.data<T>(), n, rank, parts);
  } else {
    launch<reduce_in_rank_order_kernel<T, A, false>>(stream, blocks, block_size(256), out.data<T>(), own.data<T>(),
                                                     received.data<T>(), n, rank, parts);
  }
}

}  // namespace

void reduce_in_rank_order(Stream& stream, const Tensor& out, const Tensor& own, const Tensor& received, int rank, ReduceOp op) {
  if (out.numel() == 0) return;
  if (own.numel() != out.numel() || own.dtype() != out.dtype())
    throw std::logic_error("reduce_in_rank_order of unlike tensors");
  expect(received, {received.dim(0), out.numel()}, out.dtype(), "reduce_in_rank_order received");
  if (rank < 0 || rank > received.dim(0)) throw std::logic_error("reduce_in_rank_order: no such rank");
  for (const Tensor& t : {out, own, received}) expect_contiguous(t, "reduce_in_rank_order");
  if (out.dtype() == Dtype::kInt32) return launch_reduce<std::int32_t, std::int32_t>(stream, out, own, received, rank, op);
  dispatch(out.dtype(), [&]<typename T>() { launch_reduce<T, Acc<T>>(stream, out, own, received, rank, op); });
}

}  // namespace ref5d
