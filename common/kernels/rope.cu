#include "common/device/launch.h"
#include "common/kernels/dispatch.h"
#include "common/kernels/rope.h"

namespace ref5d {
namespace {

// frequency[j] = theta^(-2j/D) = theta^(-j/half).
__global__ void rope_frequency_kernel(double* __restrict__ frequency, std::int64_t half, double theta) {
  for (std::int64_t j : grid_range(half)) frequency[j] = pow(theta, -double(j) / double(half));
}

// One block per token.
template <typename A>
__global__ void rope_table_kernel(A* __restrict__ cosine, A* __restrict__ sine, const std::int32_t* __restrict__ order,
                                  const std::int32_t* __restrict__ start, const double* __restrict__ frequency,
                                  std::int64_t half) {
  const std::int64_t token = blockIdx.x;
  const double position = double(order[token]) - double(start[token]);
  for (std::int64_t j = threadIdx.x; j < half; j += blockDim.x) {
    const double angle = position * frequency[j];
    cosine[token * half + j] = A(cos(angle));
    sine[token * half + j] = A(sin(angle));
  }
}

// One block per token. `lanes` neighbouring threads turn one head at a time, so that a GPU's block is full for short heads too.
template <typename T>
__global__ void rope_kernel(T* __restrict__ x, const Acc<T>* __restrict__ cosine, const Acc<T>* __restrict__ sine,
                            std::int64_t heads, std::int64_t half, std::int64_t ld, Acc<T> direction) {
  using A = Acc<T>;
  const std::int64_t token = blockIdx.x;
  const unsigned lanes = max(1u, half < blockDim.x ? unsigned(half) : blockDim.x), groups = blockDim.x / lanes;
  if (threadIdx.x >= lanes * groups) return;
  const A* c = cosine + token * half;
  const A* s = sine + token * half;
  for (std::int64_t head = threadIdx.x / lanes; head < heads; head += groups) {
    T* __restrict__ first = x + token * ld + head * 2 * half;
    T* __restrict__ second = first + half;
    for (std::int64_t j = threadIdx.x % lanes; j < half; j += lanes) {
      const A a = A(first[j]), b = A(second[j]), sin_j = direction * s[j];
      first[j] = T(a * c[j] - b * sin_j);
      second[j] = T(b * c[j] + a * sin_j);
    }
  }
}

}  // namespace

RopeTable make_rope_table(Stream& stream, const Tensor& order, const Tensor& start, std::int64_t head_dim, double theta,
                          Dtype dtype) {
  if (head_dim <= 0 || head_dim % 2 != 0) {
    throw std::logic_error("rotary embedding turns pairs: the head dim is " + std::to_string(head_dim) + ", not even");
  }
  const std::int64_t tokens = order.numel(), half = head_dim / 2;
  expect(order, {tokens}, Dtype::kInt32, "rope order");
  expect(start, {tokens}, Dtype::kInt32, "rope start");
  const Dtype accumulator = accumulator_of(dtype);
  const RopeTable table{Tensor::empty({tokens, half}, accumulator, MemoryCategory::kActivations, stream),
                        Tensor::empty({tokens, half}, accumulator, MemoryCategory::kActivations, stream)};
  const Tensor frequency = Tensor::empty({half}, Dtype::kFp64, MemoryCategory::kWorkspace, stream);
  launch<rope_frequency_kernel>(stream, grid_for(half), block_size(256), frequency.data<double>(), half, theta);
  dispatch(accumulator, [&]<typename A>() {
    launch<rope_table_kernel<A>>(stream, unsigned(tokens), block_size(256), table.cos.data<A>(), table.sin.data<A>(),
                                 order.data<std::int32_t>(), start.data<std::int32_t>(), frequency.data<double>(), half);
  });
  return table;
}

void rope(Stream& stream, const Tensor& x, const RopeTable& table, std::int64_t heads, bool inverse) {
  const std::int64_t tokens = table.cos.dim(0), half = table.cos.dim(1);
  expect(x, {tokens, heads * 2 * half}, x.dtype(), "rope x");
  expect(table.cos, {tokens, half}, accumulator_of(x.dtype()), "rope cos");
  expect(table.sin, {tokens, half}, accumulator_of(x.dtype()), "rope sin");
  dispatch(x.dtype(), [&]<typename T>() {
    launch<rope_kernel<T>>(stream, unsigned(tokens), block_size(256), x.data<T>(), table.cos.data<Acc<T>>(),
                           table.sin.data<Acc<T>>(), heads, half, x.ld(), Acc<T>(inverse ? -1 : 1));
  });
}

}  // namespace ref5d
