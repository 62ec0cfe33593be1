#include <cmath>

#include "common/device/launch.h"
#include "common/kernels/dispatch.h"
#include "common/kernels/layernorm.h"
#include "common/kernels/row_sums.h"

namespace ref5d {
namespace {

// One block per row. The variance is summed in a second pass over the row: mean(x^2) - mean(x)^2 would cancel.
template <typename T>
__global__ void layernorm_forward_kernel(T* __restrict__ y, Acc<T>* __restrict__ mean, Acc<T>* __restrict__ rstd,
                                         const T* __restrict__ x, const T* __restrict__ w, const T* __restrict__ b,
                                         std::int64_t columns, Acc<T> eps) {
  using A = Acc<T>;
  const std::int64_t row = blockIdx.x;
  const T* xr = x + row * columns;
  A sum = 0;
  REF5D_SIMD_SUM(sum)
  for (std::int64_t i = threadIdx.x; i < columns; i += blockDim.x) sum += A(xr[i]);
  const A m = block_sum(sum) / A(columns);
  A squares = 0;
  REF5D_SIMD_SUM(squares)
  for (std::int64_t i = threadIdx.x; i < columns; i += blockDim.x) squares += (A(xr[i]) - m) * (A(xr[i]) - m);
  const A r = A(1) / std::sqrt(block_sum(squares) / A(columns) + eps);
  if (threadIdx.x == 0) {
    mean[row] = m;
    rstd[row] = r;
  }
  T* yr = y + row * columns;
  for (std::int64_t i = threadIdx.x; i < columns; i += blockDim.x) yr[i] = T((A(xr[i]) - m) * r * A(w[i]) + A(b[i]));
}

template <typename T>
__global__ void layernorm_backward_dx_kernel(T* __restrict__ dx, const T* __restrict__ dy, const T* __restrict__ x,
                                             const Acc<T>* __restrict__ mean, const Acc<T>* __restrict__ rstd,
                                             const T* __restrict__ w, std::int64_t columns, bool accumulate) {
  using A = Acc<T>;
  const std::int64_t row = blockIdx.x, base = row * columns;
  const A m = mean[row], r = rstd[row];
  A sum_g = 0, sum_g_xhat = 0;
  REF5D_SIMD_SUM(sum_g, sum_g_xhat)
  for (std::int64_t i = threadIdx.x; i < columns; i += blockDim.x) {
    const A g = A(dy[base + i]) * A(w[i]);
    sum_g += g;
    sum_g_xhat += g * ((A(x[base + i]) - m) * r);
  }
  const A mean_g = block_sum(sum_g) / A(columns), mean_g_xhat = block_sum(sum_g_xhat) / A(columns);
  for (std::int64_t i = threadIdx.x; i < columns; i += blockDim.x) {
    const A g = A(dy[base + i]) * A(w[i]), xhat = (A(x[base + i]) - m) * r;
    const A d = r * (g - mean_g - xhat * mean_g_xhat);
    dx[base + i] = T(accumulate ? A(dx[base + i]) + d : d);
  }
}

// The p-th stretch of rows: dw_partials[p] = sum of dy * xhat, db_partials[p] = sum of dy. Block p, threads over columns.
template <typename T>
__global__ void layernorm_backward_dw_kernel(Acc<T>* __restrict__ dw_partials, Acc<T>* __restrict__ db_partials,
                                             const T* __restrict__ dy, const T* __restrict__ x, const Acc<T>* __restrict__ mean,
                                             const Acc<T>* __restrict__ rstd, std::int64_t rows, std::int64_t columns) {
  using A = Acc<T>;
  const std::int64_t stretch = (rows + gridDim.x - 1) / gridDim.x;
  const std::int64_t begin = blockIdx.x * stretch, end = min(rows, begin + stretch);
  A* dw = dw_partials + blockIdx.x * columns;
  A* db = db_partials + blockIdx.x * columns;
  for (std::int64_t i = threadIdx.x; i < columns; i += blockDim.x) dw[i] = db[i] = 0;
  for (std::int64_t row = begin; row < end; ++row) {  // a thread owns its columns: no barrier needed
    const T* dyr = dy + row * columns;
    const T* xr = x + row * columns;
    const A m = mean[row], r = rstd[row];
    REF5D_SIMD  // dw and db do not overlap, which the compiler cannot see
        for (std::int64_t i = threadIdx.x; i < columns; i += blockDim.x) {
      dw[i] += A(dyr[i]) * ((A(xr[i]) - m) * r);
      db[i] += A(dyr[i]);
    }
  }
}

}  // namespace

void layernorm_forward(Stream& stream, const Tensor& y, const Tensor& mean, const Tensor& rstd, const Tensor& x,
                       const Tensor& w, const Tensor& b, double eps) {
  const std::int64_t rows = x.dim(0), columns = x.dim(1);
  const Dtype accumulator = accumulator_of(x.dtype());
  expect(y, {rows, columns}, x.dtype(), "layernorm y");
  for (const Tensor* t : {&x, &y}) expect_contiguous(*t, "layernorm");
  expect(mean, {rows}, accumulator, "layernorm mean");
  expect(rstd, {rows}, accumulator, "layernorm rstd");
  expect(w, {columns}, x.dtype(), "layernorm w");
  expect(b, {columns}, x.dtype(), "layernorm b");
  dispatch(x.dtype(), [&]<typename T>() {
    launch<layernorm_forward_kernel<T>>(stream, unsigned(rows), block_size(256), y.data<T>(), mean.data<Acc<T>>(),
                                        rstd.data<Acc<T>>(), x.data<T>(), w.data<T>(), b.data<T>(), columns, Acc<T>(eps));
  });
}

LayernormPartials layernorm_backward_input(Stream& stream, const Tensor& dx, const Tensor& dy, const Tensor& x,
                                           const Tensor& mean, const Tensor& rstd, const Tensor& w, bool accumulate_dx) {
  const std::int64_t rows = x.dim(0), columns = x.dim(1);
  const Dtype accumulator = accumulator_of(x.dtype());
  expect(dx, {rows, columns}, x.dtype(), "layernorm dx");
  expect(dy, {rows, columns}, x.dtype(), "layernorm dy");
  for (const Tensor* t : {&dx, &dy, &x}) expect_contiguous(*t, "layernorm");
  expect(mean, {rows}, accumulator, "layernorm mean");
  expect(rstd, {rows}, accumulator, "layernorm rstd");
  expect(w, {columns}, x.dtype(), "layernorm w");
  const Tensor dw_partials = allocate_row_sum_partials(rows, columns, x.dtype(), stream);
  const Tensor db_partials = allocate_row_sum_partials(rows, columns, x.dtype(), stream);
  dispatch(x.dtype(), [&]<typename T>() {
    using A = Acc<T>;
    launch<layernorm_backward_dx_kernel<T>>(stream, unsigned(rows), block_size(256), dx.data<T>(), dy.data<T>(), x.data<T>(),
                                            mean.data<A>(), rstd.data<A>(), w.data<T>(), columns, accumulate_dx);
    launch<layernorm_backward_dw_kernel<T>>(stream, unsigned(dw_partials.dim(0)), block_size(256), dw_partials.data<A>(),
                                            db_partials.data<A>(), dy.data<T>(), x.data<T>(), mean.data<A>(), rstd.data<A>(),
                                            rows, columns);
  });
  return {dw_partials, db_partials};
}

void layernorm_backward(Stream& stream, const Tensor& dx, const Tensor& dw, const Tensor& db, const Tensor& dy, const Tensor& x,
                        const Tensor& mean, const Tensor& rstd, const Tensor& w, bool accumulate_dx, bool accumulate_dw,
                        bool accumulate_db) {
  const LayernormPartials partials = layernorm_backward_input(stream, dx, dy, x, mean, rstd, w, accumulate_dx);
  add_row_sums(stream, dw, partials.dw, accumulate_dw);
  add_row_sums(stream, db, partials.db, accumulate_db);
}

}  // namespace ref5d
