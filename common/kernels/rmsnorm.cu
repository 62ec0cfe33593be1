#include <cmath>

#include "common/device/launch.h"
#include "common/kernels/counted.h"
#include "common/kernels/dispatch.h"
#include "common/kernels/rmsnorm.h"
#include "common/kernels/row_sums.h"

namespace ref5d {
namespace {

// One block per row.
template <typename T>
__global__ void rmsnorm_forward_kernel(T* __restrict__ y, Acc<T>* __restrict__ rstd, const T* __restrict__ x,
                                       const T* __restrict__ w, std::int64_t columns, Acc<T> eps) {
  using A = Acc<T>;
  const std::int64_t row = blockIdx.x;
  const T* xr = x + row * columns;
  A sum = 0;
  REF5D_SIMD_SUM(sum)
  for (std::int64_t i = threadIdx.x; i < columns; i += blockDim.x) sum += A(xr[i]) * A(xr[i]);
  const A r = A(1) / std::sqrt(block_sum(sum) / A(columns) + eps);
  if (threadIdx.x == 0) rstd[row] = r;
  T* yr = y + row * columns;
  for (std::int64_t i = threadIdx.x; i < columns; i += blockDim.x) yr[i] = T(A(xr[i]) * r * A(w[i]));
}

template <typename T>
__global__ void rmsnorm_backward_dx_kernel(T* __restrict__ dx, const T* __restrict__ dy, const T* __restrict__ x,
                                           const Acc<T>* __restrict__ rstd, const T* __restrict__ w, std::int64_t columns,
                                           bool accumulate) {
  using A = Acc<T>;
  const std::int64_t row = blockIdx.x, base = row * columns;
  const A r = rstd[row];
  A dot = 0;
  REF5D_SIMD_SUM(dot)
  for (std::int64_t i = threadIdx.x; i < columns; i += blockDim.x) dot += A(dy[base + i]) * A(w[i]) * A(x[base + i]);
  const A mean = block_sum(dot) * r / A(columns);  // mean(g * xhat)
  for (std::int64_t i = threadIdx.x; i < columns; i += blockDim.x) {
    const A g = A(dy[base + i]) * A(w[i]), xhat = A(x[base + i]) * r;
    const A d = r * (g - xhat * mean);
    dx[base + i] = T(accumulate ? A(dx[base + i]) + d : d);
  }
}

// partials[p] = sum over the p-th stretch of rows of dy * xhat. Block p, threads over columns.
template <typename T>
__global__ void rmsnorm_backward_dw_kernel(Acc<T>* __restrict__ partials, const T* __restrict__ dy, const T* __restrict__ x,
                                           const Acc<T>* __restrict__ rstd, std::int64_t rows, std::int64_t columns) {
  using A = Acc<T>;
  const std::int64_t stretch = (rows + gridDim.x - 1) / gridDim.x;
  const std::int64_t begin = blockIdx.x * stretch, end = min(rows, begin + stretch);
  A* out = partials + blockIdx.x * columns;
  for (std::int64_t i = threadIdx.x; i < columns; i += blockDim.x) out[i] = 0;
  for (std::int64_t row = begin; row < end; ++row) {  // a thread owns its columns: no barrier needed
    const A r = rstd[row];
    for (std::int64_t i = threadIdx.x; i < columns; i += blockDim.x)
      out[i] += A(dy[row * columns + i]) * A(x[row * columns + i]) * r;
  }
}

}  // namespace

void rmsnorm_forward(Stream& stream, const Tensor& y, const Tensor& rstd, const Tensor& x, const Tensor& w, double eps) {
  const std::int64_t rows = x.dim(0), columns = x.dim(1);
  expect(y, {rows, columns}, x.dtype(), "rmsnorm y");
  for (const Tensor* t : {&x, &y}) expect_contiguous(*t, "rmsnorm");
  expect(rstd, {rows}, accumulator_of(x.dtype()), "rmsnorm rstd");
  expect(w, {columns}, x.dtype(), "rmsnorm w");
  dispatch(x.dtype(), [&]<typename T>() {
    launch<rmsnorm_forward_kernel<T>>(stream, unsigned(rows), block_size(256), writes<T>(y), writes<Acc<T>>(rstd), reads<T>(x),
                                      reads<T>(w), columns, Acc<T>(eps));
  });
}

Tensor rmsnorm_backward_input(Stream& stream, const Tensor& dx, const Tensor& dy, const Tensor& x, const Tensor& rstd,
                              const Tensor& w, bool accumulate_dx) {
  const std::int64_t rows = x.dim(0), columns = x.dim(1);
  expect(dx, {rows, columns}, x.dtype(), "rmsnorm dx");
  expect(dy, {rows, columns}, x.dtype(), "rmsnorm dy");
  for (const Tensor* t : {&dx, &dy, &x}) expect_contiguous(*t, "rmsnorm");
  expect(rstd, {rows}, accumulator_of(x.dtype()), "rmsnorm rstd");
  expect(w, {columns}, x.dtype(), "rmsnorm w");
  Tensor partials = allocate_row_sum_partials(rows, columns, x.dtype(), stream);
  dispatch(x.dtype(), [&]<typename T>() {
    launch<rmsnorm_backward_dx_kernel<T>>(stream, unsigned(rows), block_size(256), dx.data<T>(), dy.data<T>(), x.data<T>(),
                                          rstd.data<Acc<T>>(), w.data<T>(), columns, accumulate_dx);
    launch<rmsnorm_backward_dw_kernel<T>>(stream, unsigned(partials.dim(0)), block_size(256), partials.data<Acc<T>>(),
                                          dy.data<T>(), x.data<T>(), rstd.data<Acc<T>>(), rows, columns);
  });
  return partials;
}

void rmsnorm_backward(Stream& stream, const Tensor& dx, const Tensor& dw, const Tensor& dy, const Tensor& x, const Tensor& rstd,
                      const Tensor& w, bool accumulate_dx, bool accumulate_dw) {
  add_row_sums(stream, dw, rmsnorm_backward_input(stream, dx, dy, x, rstd, w, accumulate_dx), accumulate_dw);
}

}  // namespace ref5d
