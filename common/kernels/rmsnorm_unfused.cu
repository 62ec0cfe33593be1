// RMSNorm as an unfused framework computes it: every step is a kernel, and every intermediate goes through memory.
#include <cmath>

#include "common/device/launch.h"
#include "common/kernels/counted.h"
#include "common/kernels/dispatch.h"
#include "common/kernels/rmsnorm.h"

namespace ref5d {
namespace {

template <typename T>
__global__ void square_kernel(T* __restrict__ y, const T* __restrict__ x, std::int64_t n) {
  for (std::int64_t i : grid_range(n)) y[i] = T(Acc<T>(x[i]) * Acc<T>(x[i]));
}

template <typename T>
__global__ void row_rsqrt_mean_kernel(Acc<T>* __restrict__ rstd, const T* __restrict__ squares, std::int64_t columns,
                                      Acc<T> eps) {
  using A = Acc<T>;
  const T* row = squares + blockIdx.x * columns;
  A sum = 0;
  REF5D_SIMD_SUM(sum)
  for (std::int64_t i = threadIdx.x; i < columns; i += blockDim.x) sum += A(row[i]);
  const A r = A(1) / std::sqrt(block_sum(sum) / A(columns) + eps);
  if (threadIdx.x == 0) rstd[blockIdx.x] = r;
}

template <typename T>
__global__ void scale_rows_kernel(T* __restrict__ y, const T* __restrict__ x, const Acc<T>* __restrict__ factor,
                                  std::int64_t columns) {
  const std::int64_t base = blockIdx.x * columns;
  const Acc<T> f = factor[blockIdx.x];
  for (std::int64_t i = threadIdx.x; i < columns; i += blockDim.x) y[base + i] = T(Acc<T>(x[base + i]) * f);
}

template <typename T>
__global__ void scale_columns_kernel(T* __restrict__ y, const T* __restrict__ x, const T* __restrict__ w,
                                     std::int64_t columns) {
  const std::int64_t base = blockIdx.x * columns;
  for (std::int64_t i = threadIdx.x; i < columns; i += blockDim.x) y[base + i] = T(Acc<T>(x[base + i]) * Acc<T>(w[i]));
}

}  // namespace

void rmsnorm_forward_unfused(Stream& stream, const Tensor& y, const Tensor& rstd, const Tensor& squares,
                             const Tensor& normalised, const Tensor& x, const Tensor& w, double eps) {
  const std::int64_t rows = x.dim(0), columns = x.dim(1);
  for (const Tensor* t : {&y, &squares, &normalised}) expect(*t, {rows, columns}, x.dtype(), "rmsnorm_forward_unfused");
  for (const Tensor* t : {&x, &y, &squares, &normalised}) expect_contiguous(*t, "rmsnorm_forward_unfused");
  expect(rstd, {rows}, accumulator_of(x.dtype()), "rmsnorm_forward_unfused rstd");
  expect(w, {columns}, x.dtype(), "rmsnorm_forward_unfused w");
  const auto blocks = static_cast<unsigned>(rows);
  dispatch(x.dtype(), [&]<typename T>() {
    using A = Acc<T>;
    launch<square_kernel<T>>(stream, grid_for(x.numel()), block_size(256), writes<T>(squares), reads<T>(x), x.numel());
    launch<row_rsqrt_mean_kernel<T>>(stream, blocks, block_size(256), writes<A>(rstd), reads<T>(squares), columns, A(eps));
    launch<scale_rows_kernel<T>>(stream, blocks, block_size(256), writes<T>(normalised), reads<T>(x), reads<A>(rstd), columns);
    launch<scale_columns_kernel<T>>(stream, blocks, block_size(256), writes<T>(y), reads<T>(normalised), reads<T>(w), columns);
  });
}

}  // namespace ref5d
