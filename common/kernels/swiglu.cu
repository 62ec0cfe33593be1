#include "common/device/launch.h"
#include "common/device/math.h"
#include "common/kernels/counted.h"
#include "common/kernels/dispatch.h"
#include "common/kernels/swiglu.h"

namespace ref5d {
namespace {

template <typename T>
__global__ void swiglu_forward_kernel(T* __restrict__ y, const T* __restrict__ gate, const T* __restrict__ up, std::int64_t n) {
  using A = Acc<T>;
  for (std::int64_t i : grid_range(n)) {
    const A g = A(gate[i]);
    y[i] = T(g / (A(1) + exp_of(-g)) * A(up[i]));
  }
}

// No __restrict__: an output may be an input's storage.
template <typename T>
__global__ void swiglu_backward_kernel(T* dgate, T* dup, const T* dy, const T* gate, const T* up, std::int64_t n) {
  using A = Acc<T>;
  for (std::int64_t i : grid_range(n)) {
    const A g = A(gate[i]), u = A(up[i]), d = A(dy[i]);
    const A s = A(1) / (A(1) + exp_of(-g));
    dgate[i] = T(d * u * s * (A(1) + g * (A(1) - s)));
    dup[i] = T(d * g * s);
  }
}

template <typename T>
__global__ void silu_kernel(T* __restrict__ y, const T* __restrict__ x, std::int64_t n) {
  using A = Acc<T>;
  for (std::int64_t i : grid_range(n)) {
    const A g = A(x[i]);
    y[i] = T(g / (A(1) + exp_of(-g)));
  }
}

template <typename T>
__global__ void multiply_kernel(T* __restrict__ y, const T* __restrict__ a, const T* __restrict__ b, std::int64_t n) {
  for (std::int64_t i : grid_range(n)) y[i] = T(Acc<T>(a[i]) * Acc<T>(b[i]));
}

void expect_like(const Tensor& t, const Tensor& like, const char* what) {
  expect(t, like.shape(), like.dtype(), what);
  expect_contiguous(t, what);
}

}  // namespace

void swiglu_forward(Stream& stream, const Tensor& y, const Tensor& gate, const Tensor& up) {
  expect_like(gate, gate, "swiglu gate");
  expect_like(up, gate, "swiglu up");
  expect_like(y, gate, "swiglu y");
  const std::int64_t n = gate.numel();
  dispatch(gate.dtype(), [&]<typename T>() {
    launch<swiglu_forward_kernel<T>>(stream, grid_for(n), block_size(256), writes<T>(y), reads<T>(gate), reads<T>(up), n);
  });
}

void swiglu_backward(Stream& stream, const Tensor& dgate, const Tensor& dup, const Tensor& dy, const Tensor& gate,
                     const Tensor& up) {
  expect_like(gate, gate, "swiglu gate");
  expect_like(up, gate, "swiglu up");
  expect_like(dy, gate, "swiglu dy");
  expect_like(dgate, gate, "swiglu dgate");
  expect_like(dup, gate, "swiglu dup");
  const std::int64_t n = gate.numel();
  dispatch(gate.dtype(), [&]<typename T>() {
    launch<swiglu_backward_kernel<T>>(stream, grid_for(n), block_size(256), dgate.data<T>(), dup.data<T>(), dy.data<T>(),
                                      gate.data<T>(), up.data<T>(), n);
  });
}

void swiglu_forward_unfused(Stream& stream, const Tensor& y, const Tensor& scratch, const Tensor& gate, const Tensor& up) {
  expect_like(gate, gate, "swiglu gate");
  expect_like(up, gate, "swiglu up");
  expect_like(scratch, gate, "swiglu scratch");
  expect_like(y, gate, "swiglu y");
  const std::int64_t n = gate.numel();
  dispatch(gate.dtype(), [&]<typename T>() {
    launch<silu_kernel<T>>(stream, grid_for(n), block_size(256), writes<T>(scratch), reads<T>(gate), n);
    launch<multiply_kernel<T>>(stream, grid_for(n), block_size(256), writes<T>(y), reads<T>(scratch), reads<T>(up), n);
  });
}

}  // namespace ref5d
