#include "common/device/launch.h"
#include "common/device/math.h"
#include "common/kernels/dispatch.h"
#include "common/kernels/gelu.h"

namespace ref5d {
namespace {

// sigmoid(2u) with u = sqrt(2/pi) * (x + 0.044715 x^3).
template <typename A>
__device__ __forceinline__ A gelu_gate(A x) {
  constexpr A kTwice = A(2 * 0.79788456080286535588), kCubic = A(0.044715);
  return A(1) / (A(1) + exp_of(-kTwice * x * (A(1) + kCubic * x * x)));
}

template <typename T>
__global__ void gelu_forward_kernel(T* __restrict__ y, const T* __restrict__ x, std::int64_t n) {
  using A = Acc<T>;
  for (std::int64_t i : grid_range(n)) {
    const A v = A(x[i]);
    y[i] = T(v * gelu_gate(v));
  }
}

// No __restrict__: dx may be dy's storage.
template <typename T>
__global__ void gelu_backward_kernel(T* dx, const T* dy, const T* x, std::int64_t n) {
  using A = Acc<T>;
  constexpr A kTwice = A(2 * 0.79788456080286535588), kCubic = A(3 * 0.044715);
  for (std::int64_t i : grid_range(n)) {
    const A v = A(x[i]), s = gelu_gate(v);
    const A slope = kTwice * (A(1) + kCubic * v * v);
    dx[i] = T(A(dy[i]) * (s + s * (A(1) - s) * v * slope));
  }
}

}  // namespace

void gelu_forward(Stream& stream, const Tensor& y, const Tensor& x) {
  expect(y, x.shape(), x.dtype(), "gelu y");
  expect_contiguous(y, "gelu y");
  expect_contiguous(x, "gelu x");
  const std::int64_t n = x.numel();
  dispatch(x.dtype(), [&]<typename T>() {
    launch<gelu_forward_kernel<T>>(stream, grid_for(n), block_size(256), y.data<T>(), x.data<T>(), n);
  });
}

void gelu_backward(Stream& stream, const Tensor& dx, const Tensor& dy, const Tensor& x) {
  expect(dx, x.shape(), x.dtype(), "gelu dx");
  expect(dy, x.shape(), x.dtype(), "gelu dy");
  expect_contiguous(dx, "gelu dx");
  expect_contiguous(dy, "gelu dy");
  expect_contiguous(x, "gelu x");
  const std::int64_t n = x.numel();
  dispatch(x.dtype(), [&]<typename T>() {
    launch<gelu_backward_kernel<T>>(stream, grid_for(n), block_size(256), dx.data<T>(), dy.data<T>(), x.data<T>(), n);
  });
}

}  // namespace ref5d
