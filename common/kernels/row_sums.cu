#include "common/device/launch.h"
#include "common/kernels/dispatch.h"
#include "common/kernels/row_sums.h"

namespace ref5d {
namespace {

// A block per kColumns columns, a thread for each or one for all: partial rows are added one after the other.
constexpr int kColumns = 256, kThreads = static_cast<int>(block_size(kColumns)), kPerThread = kColumns / kThreads;

template <typename A, typename O>
__global__ void add_row_sums_kernel(O* __restrict__ out, const A* __restrict__ partials, std::int64_t rows,
                                    std::int64_t columns, bool accumulate) {
  const std::int64_t first = blockIdx.x * std::int64_t{kColumns} + threadIdx.x;
  // This thread's columns: first, first + kThreads, ...
  const int count = static_cast<int>(min(std::int64_t{kPerThread}, (columns - first + kThreads - 1) / kThreads));
  A sum[kPerThread] = {};
  for (std::int64_t p = 0; p < rows; ++p) {
    const A* row = partials + p * columns + first;
    for (int j = 0; j < count; ++j) sum[j] += row[j * kThreads];
  }
  for (int j = 0; j < count; ++j) {
    O& to = out[first + j * kThreads];
    to = O(accumulate ? A(to) + sum[j] : sum[j]);
  }
}

}  // namespace

Tensor allocate_row_sum_partials(std::int64_t rows, std::int64_t columns, Dtype dtype, Stream& stream) {
  return Tensor::empty({row_sum_partials(rows), columns}, accumulator_of(dtype), MemoryCategory::kWorkspace, stream);
}

void add_row_sums(Stream& stream, const Tensor& out, const Tensor& partials, bool accumulate) {
  const std::int64_t rows = partials.dim(0), columns = partials.dim(1);
  expect(out, {columns}, out.dtype(), "the sum over rows");
  expect(partials, {rows, columns}, accumulator_of(out.dtype()), "the partial sums");
  dispatch(out.dtype(), [&]<typename O>() {
    launch<add_row_sums_kernel<Acc<O>, O>>(stream, unsigned((columns + kColumns - 1) / kColumns), block_size(256),
                                           out.data<O>(), partials.data<Acc<O>>(), rows, columns, accumulate);
  });
}

}  // namespace ref5d
