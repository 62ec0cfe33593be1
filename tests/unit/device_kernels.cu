#include "common/device/launch.h"
#include "common/device/math.h"
#include "common/kernels/dispatch.h"
#include "common/kernels/philox.h"
#include "tests/unit/device_kernels.h"

namespace ref5d::testing {
namespace {

template <typename T>
__global__ void add_constant_kernel(T* x, std::int64_t n, Acc<T> v) {
  for (std::int64_t i : grid_range(n)) x[i] = T(Acc<T>(x[i]) + v);
}

template <typename T>
__global__ void multiply_kernel(T* out, const T* x, std::int64_t n, Acc<T> a) {
  for (std::int64_t i : grid_range(n)) out[i] = T(a * Acc<T>(x[i]));
}

__global__ void count_visits_kernel(std::int32_t* counts, std::int64_t n) {
  for (std::int64_t i : grid_range(n)) ++counts[i];
}

__global__ void number_blocks_kernel(std::int32_t* out) {
  const std::int64_t block = (std::int64_t{blockIdx.z} * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  if (threadIdx.x == 0) out[block] = static_cast<std::int32_t>(block) + 1;
}

template <typename T>
__global__ void reduce_in_block_kernel(T* sums, T* maxima, const T* x, std::int64_t n) {
  T sum = 0, largest = -INFINITY;
  for (std::int64_t i = threadIdx.x; i < n; i += blockDim.x) {
    sum += x[i];
    largest = x[i] > largest ? x[i] : largest;
  }
  sums[threadIdx.x] = block_sum(sum);
  maxima[threadIdx.x] = block_max(largest);
}

__global__ void reverse_in_shared_kernel(double* out, const double* x, std::int64_t n) {
  double* kept = dynamic_shared<double>();
  for (std::int64_t i = threadIdx.x; i < n; i += blockDim.x) kept[i] = x[i];
  __syncthreads();
  for (std::int64_t i = threadIdx.x; i < n; i += blockDim.x) out[i] = kept[n - 1 - i];
}

template <typename T>
__global__ void exponential_kernel(T* __restrict__ out, const T* __restrict__ x, std::int64_t n) {
  for (std::int64_t i : grid_range(n)) out[i] = exp_of(x[i]);
}

__global__ void exponential_of_negative_kernel(float* __restrict__ out, const float* __restrict__ x, std::int64_t n) {
  for (std::int64_t i : grid_range(n)) out[i] = exp_of_negative(x[i]);
}

__global__ void to_bf16_kernel(bf16* __restrict__ out, float* __restrict__ back, const float* __restrict__ x, std::int64_t n) {
  for (std::int64_t i : grid_range(n)) {
    out[i] = bf16(x[i]);
    back[i] = float(out[i]);
  }
}

__global__ void philox_kernel(std::int32_t* out, std::uint64_t key, std::uint64_t low, std::uint64_t high) {
  if (threadIdx.x != 0) return;
  const Uint4 r = philox(key, {static_cast<std::uint32_t>(low), static_cast<std::uint32_t>(low >> 32),
                               static_cast<std::uint32_t>(high), static_cast<std::uint32_t>(high >> 32)});
  out[0] = static_cast<std::int32_t>(r.x);
  out[1] = static_cast<std::int32_t>(r.y);
  out[2] = static_cast<std::int32_t>(r.z);
  out[3] = static_cast<std::int32_t>(r.w);
}

}  // namespace

void add_constant(Stream& stream, const Tensor& x, double v) { add_constant(stream, x, v, grid_for(x.numel()), 1, 1); }

void add_constant(Stream& stream, const Tensor& x, double v, unsigned grid_x, unsigned grid_y, unsigned grid_z) {
  dispatch(x.dtype(), [&]<typename T>() {
    launch<add_constant_kernel<T>>(stream, Grid(grid_x, grid_y, grid_z), block_size(256), x.data<T>(), x.numel(), Acc<T>(v));
  });
}

void multiply(Stream& stream, const Tensor& out, const Tensor& x, double a) {
  dispatch(x.dtype(), [&]<typename T>() {
    launch<multiply_kernel<T>>(stream, grid_for(x.numel()), block_size(256), out.data<T>(), x.data<T>(), x.numel(), Acc<T>(a));
  });
}

void count_visits(Stream& stream, const Tensor& counts, std::int64_t n, unsigned blocks) {
  launch<count_visits_kernel>(stream, blocks, block_size(256), counts.data<std::int32_t>(), n);
}

unsigned blocks_for(std::int64_t n) { return grid_for(n); }

void number_blocks(Stream& stream, const Tensor& out) {
  const Grid grid(unsigned(out.dim(2)), unsigned(out.dim(1)), unsigned(out.dim(0)));
  launch<number_blocks_kernel>(stream, grid, block_size(64), out.data<std::int32_t>());
}

std::int64_t threads_per_block() { return block_size(256); }

void reduce_in_block(Stream& stream, const Tensor& sums, const Tensor& maxima, const Tensor& x) {
  if (x.dtype() == Dtype::kFp32) {
    launch<reduce_in_block_kernel<float>>(stream, 1, block_size(256), sums.data<float>(), maxima.data<float>(), x.data<float>(),
                                          x.numel());
  } else {
    launch<reduce_in_block_kernel<double>>(stream, 1, block_size(256), sums.data<double>(), maxima.data<double>(),
                                           x.data<double>(), x.numel());
  }
}

void reverse_in_shared(Stream& stream, const Tensor& out, const Tensor& x) {
  launch<reverse_in_shared_kernel>(stream, 1, Block(block_size(256), x.bytes()), out.data<double>(), x.data<double>(),
                                   x.numel());
}

void exponential(Stream& stream, const Tensor& out, const Tensor& x) {
  const unsigned grid = grid_for(x.numel());
  if (x.dtype() == Dtype::kFp32) {
    launch<exponential_kernel<float>>(stream, grid, block_size(256), out.data<float>(), x.data<float>(), x.numel());
  } else {
    launch<exponential_kernel<double>>(stream, grid, block_size(256), out.data<double>(), x.data<double>(), x.numel());
  }
}

void exponential_of_negative(Stream& stream, const Tensor& out, const Tensor& x) {
  launch<exponential_of_negative_kernel>(stream, grid_for(x.numel()), block_size(256), out.data<float>(), x.data<float>(),
                                         x.numel());
}

void to_bf16(Stream& stream, const Tensor& out, const Tensor& back, const Tensor& x) {
  launch<to_bf16_kernel>(stream, grid_for(x.numel()), block_size(256), out.data<bf16>(), back.data<float>(), x.data<float>(),
                         x.numel());
}

void philox_on_device(Stream& stream, const Tensor& out, std::uint64_t key, std::uint64_t counter_low,
                      std::uint64_t counter_high) {
  launch<philox_kernel>(stream, 1, block_size(32), out.data<std::int32_t>(), key, counter_low, counter_high);
}

}  // namespace ref5d::testing
