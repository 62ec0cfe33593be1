#include <type_traits>

#include "common/device/launch.h"
#include "common/kernels/dispatch.h"
#include "common/kernels/elementwise.h"
#include "common/kernels/row_sums.h"

namespace ref5d {
namespace {

// No __restrict__: y may be a's or b's storage.
template <typename T>
__global__ void add_kernel(T* y, const T* a, const T* b, std::int64_t n) {
  for (std::int64_t i : grid_range(n)) y[i] = T(Acc<T>(a[i]) + Acc<T>(b[i]));
}

// One block per row.
template <typename T>
__global__ void add_matrix_kernel(T* __restrict__ to, const T* __restrict__ from, std::int64_t columns, std::int64_t to_ld,
                                  std::int64_t from_ld) {
  T* __restrict__ sums = to + blockIdx.x * to_ld;
  const T* __restrict__ terms = from + blockIdx.x * from_ld;
  for (std::int64_t c = threadIdx.x; c < columns; c += blockDim.x) sums[c] = T(Acc<T>(sums[c]) + Acc<T>(terms[c]));
}

// One block per row.
template <typename T>
__global__ void bias_forward_kernel(T* __restrict__ y, const T* __restrict__ bias, std::int64_t columns, std::int64_t ld) {
  T* row = y + blockIdx.x * ld;
  for (std::int64_t c = threadIdx.x; c < columns; c += blockDim.x) row[c] = T(Acc<T>(row[c]) + Acc<T>(bias[c]));
}

// partials[p] = sum over the p-th stretch of rows. Block p, threads over columns.
template <typename T>
__global__ void bias_backward_kernel(Acc<T>* __restrict__ partials, const T* __restrict__ dy, std::int64_t rows,
                                     std::int64_t columns, std::int64_t ld) {
  const std::int64_t stretch = (rows + gridDim.x - 1) / gridDim.x;
  const std::int64_t begin = min(rows, blockIdx.x * stretch), end = min(rows, begin + stretch);
  Acc<T>* out = partials + blockIdx.x * columns;
  for (std::int64_t c = threadIdx.x; c < columns; c += blockDim.x) out[c] = 0;
  for (std::int64_t row = begin; row < end; ++row) {  // a thread owns its columns: no barrier needed
    for (std::int64_t c = threadIdx.x; c < columns; c += blockDim.x) out[c] += Acc<T>(dy[row * ld + c]);
  }
}

template <typename To, typename From>
__global__ void convert_kernel(To* __restrict__ to, const From* __restrict__ from, std::int64_t n) {
  for (std::int64_t i : grid_range(n)) to[i] = To(from[i]);
}

template <typename Y, typename X>
__global__ void scaled_add_kernel(Y* __restrict__ y, const X* __restrict__ x, std::int64_t n, double alpha) {
  using A = std::conditional_t<std::is_same_v<Y, double> || std::is_same_v<X, double>, double, float>;
  const A a = A(alpha);
  for (std::int64_t i : grid_range(n)) y[i] = Y(A(y[i]) + a * A(x[i]));
}

template <typename T>
__global__ void scale_kernel(T* __restrict__ y, std::int64_t n, Acc<T> alpha) {
  for (std::int64_t i : grid_range(n)) y[i] = T(alpha * Acc<T>(y[i]));
}

// One block per row. Copies bits, whatever they mean.
template <typename Bits>
__global__ void copy_matrix_kernel(Bits* __restrict__ to, const Bits* __restrict__ from, std::int64_t columns,
                                   std::int64_t to_ld, std::int64_t from_ld) {
  const std::int64_t row = blockIdx.x;
  for (std::int64_t c = threadIdx.x; c < columns; c += blockDim.x) to[row * to_ld + c] = from[row * from_ld + c];
}

template <typename Bits>
void launch_copy(Stream& stream, const Tensor& to, const Tensor& from) {
  launch<copy_matrix_kernel<Bits>>(stream, unsigned(from.dim(0)), block_size(256), to.data<Bits>(), from.data<Bits>(),
                                   from.dim(1), to.ld(), from.ld());
}

}  // namespace

void add(Stream& stream, const Tensor& y, const Tensor& a, const Tensor& b) {
  expect(y, a.shape(), a.dtype(), "add y");
  expect(b, a.shape(), a.dtype(), "add b");
  for (const Tensor* t : {&y, &a, &b}) expect_contiguous(*t, "add");
  const std::int64_t n = a.numel();
  dispatch(a.dtype(), [&]<typename T>() {
    launch<add_kernel<T>>(stream, grid_for(n), block_size(256), y.data<T>(), a.data<T>(), b.data<T>(), n);
  });
}

void add_matrix(Stream& stream, const Tensor& to, const Tensor& from) {
  expect(from, {from.dim(0), from.dim(1)}, from.dtype(), "add_matrix from");
  expect(to, from.shape(), from.dtype(), "add_matrix to");
  dispatch(from.dtype(), [&]<typename T>() {
    launch<add_matrix_kernel<T>>(stream, unsigned(from.dim(0)), block_size(256), to.data<T>(), from.data<T>(), from.dim(1),
                                 to.ld(), from.ld());
  });
}

void bias_forward(Stream& stream, const Tensor& y, const Tensor& bias) {
  const std::int64_t rows = y.dim(0), columns = y.dim(1);
  expect(y, {rows, columns}, y.dtype(), "bias y");
  expect(bias, {columns}, y.dtype(), "bias");
  dispatch(y.dtype(), [&]<typename T>() {
    launch<bias_forward_kernel<T>>(stream, unsigned(rows), block_size(256), y.data<T>(), bias.data<T>(), columns, y.ld());
  });
}

void bias_backward(Stream& stream, const Tensor& dbias, const Tensor& dy, bool accumulate) {
  const std::int64_t rows = dy.dim(0), columns = dy.dim(1);
  expect(dy, {rows, columns}, dy.dtype(), "bias dy");
  expect(dbias, {columns}, dbias.dtype() == dy.dtype() ? dy.dtype() : accumulator_of(dy.dtype()), "dbias");
  const Tensor partials = allocate_row_sum_partials(rows, columns, dy.dtype(), stream);
  dispatch(dy.dtype(), [&]<typename T>() {
    launch<bias_backward_kernel<T>>(stream, unsigned(partials.dim(0)), block_size(256), partials.data<Acc<T>>(), dy.data<T>(),
                                    rows, columns, dy.ld());
  });
  add_row_sums(stream, dbias, partials, accumulate);
}

void convert(Stream& stream, const Tensor& to, const Tensor& from) {
  if (to.numel() != from.numel())
    throw std::logic_error("convert of " + to_string(from.shape()) + " to " + to_string(to.shape()));
  for (const Tensor* t : {&to, &from}) expect_contiguous(*t, "convert");
  const std::int64_t n = from.numel();
  dispatch(to.dtype(), [&]<typename To>() {
    dispatch(from.dtype(), [&]<typename From>() {
      launch<convert_kernel<To, From>>(stream, grid_for(n), block_size(256), to.data<To>(), from.data<From>(), n);
    });
  });
}

void scaled_add(Stream& stream, const Tensor& y, const Tensor& x, double alpha) {
  if (y.numel() != x.numel()) throw std::logic_error("scaled_add of " + to_string(x.shape()) + " to " + to_string(y.shape()));
  for (const Tensor* t : {&y, &x}) expect_contiguous(*t, "scaled_add");
  const std::int64_t n = y.numel();
  dispatch(y.dtype(), [&]<typename Y>() {
    dispatch(x.dtype(), [&]<typename X>() {
      launch<scaled_add_kernel<Y, X>>(stream, grid_for(n), block_size(256), y.data<Y>(), x.data<X>(), n, alpha);
    });
  });
}

void scale(Stream& stream, const Tensor& y, double alpha) {
  expect_contiguous(y, "scale");
  if (alpha == 0) return fill_zero(stream, y.raw(), y.bytes());
  const std::int64_t n = y.numel();
  dispatch(y.dtype(),
           [&]<typename T>() { launch<scale_kernel<T>>(stream, grid_for(n), block_size(256), y.data<T>(), n, Acc<T>(alpha)); });
}

void copy_matrix(Stream& stream, const Tensor& to, const Tensor& from) {
  expect(from, {from.dim(0), from.dim(1)}, from.dtype(), "copy_matrix from");
  expect(to, from.shape(), from.dtype(), "copy_matrix to");
  switch (dtype_size(from.dtype())) {
    case 8: return launch_copy<std::uint64_t>(stream, to, from);
    case 4: return launch_copy<std::uint32_t>(stream, to, from);
    default: return launch_copy<std::uint16_t>(stream, to, from);
  }
}

}  // namespace ref5d
