#include <cmath>

#include "common/device/launch.h"
#include "common/kernels/dispatch.h"
#include "common/kernels/grad_norm.h"

namespace ref5d {
namespace {

// Block b takes the elements of block b of the whole tensor, run by run.
template <typename T>
__global__ void sum_of_squares_kernel(double* __restrict__ partials, const T* __restrict__ x, std::int64_t n,
                                      std::int64_t x_begin, Runs runs, double weight, bool add) {
  const std::int64_t begin = blockIdx.x * kNormBlock, end = begin + kNormBlock;
  double sum = 0;
  const std::int64_t before = begin - runs.global_begin - runs.length;  // runs that end here or earlier have nothing in it
  std::int64_t run = before < 0 ? 0 : before / runs.global_stride;
  for (; run < runs.count; ++run) {
    const std::int64_t global = runs.global_begin + run * runs.global_stride;
    if (global >= end) break;
    const std::int64_t local = runs.local_begin + run * runs.local_stride - x_begin;  // in x; may be outside of it
    const std::int64_t from = max(std::int64_t(0), max(begin - global, -local));
    const std::int64_t count = min(runs.length, min(end - global, n - local)) - from;
    if (count <= 0) continue;
    const T* __restrict__ block = x + (local + from);
    REF5D_SIMD_SUM(sum)
    for (std::int64_t i = threadIdx.x; i < count; i += blockDim.x) sum += double(block[i]) * double(block[i]);
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) partials[blockIdx.x] = (add ? partials[blockIdx.x] : 0.0) + weight * sum;
}

// One block.
__global__ void clip_scale_kernel(double* __restrict__ scale, double* __restrict__ norm, const double* __restrict__ partials,
                                  std::int64_t n, double max_norm) {
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < n; i += blockDim.x) sum += partials[i];
  const double total = std::sqrt(block_sum(sum));
  if (threadIdx.x != 0) return;
  norm[0] = total;
  const double ratio = max_norm / total;
  scale[0] = max_norm <= 0 ? 1 : !std::isfinite(total) ? total : ratio < 1 ? ratio : 1;
}

}  // namespace

void sum_of_squares(Stream& stream, const Tensor& partials, const Tensor& x) {
  const std::int64_t n = x.numel();
  expect(partials, {norm_blocks(n)}, Dtype::kFp64, "sum_of_squares partials");
  sum_of_squares_of_part(stream, partials, x, {1, n, 0, n, 0, n}, 0, 1.0, false);
}

void sum_of_squares_of_part(Stream& stream, const Tensor& partials, const Tensor& x, const Runs& runs, std::int64_t x_begin,
                            double weight, bool add) {
  const std::int64_t blocks = partials.numel();
  expect(partials, {blocks}, Dtype::kFp64, "sum_of_squares partials");
  expect_contiguous(x, "sum_of_squares x");
  dispatch(x.dtype(), [&]<typename T>() {
    launch<sum_of_squares_kernel<T>>(stream, unsigned(blocks), block_size(256), partials.data<double>(), x.data<T>(), x.numel(),
                                     x_begin, runs, weight, add);
  });
}

void clip_scale(Stream& stream, const Tensor& scale, const Tensor& norm, const Tensor& partials, double max_norm) {
  expect(partials, {partials.numel()}, Dtype::kFp64, "clip_scale partials");
  expect(scale, {1}, Dtype::kFp64, "clip_scale scale");
  expect(norm, {1}, Dtype::kFp64, "clip_scale norm");
  launch<clip_scale_kernel>(stream, 1, block_size(256), scale.data<double>(), norm.data<double>(), partials.data<double>(),
                            partials.numel(), max_norm);
}

}  // namespace ref5d
