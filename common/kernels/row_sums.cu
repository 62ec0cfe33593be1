#include "common/device/launch.h"
#include "common/kernels/dispatch.h"
#include "common/kernels/row_sums.h"

namespace ref5d {
namespace {

// A block per kColumns columns, which on the CPU are the vectors of the loop: it adds the partials row by row.
constexpr std::int64_t kColumns = 256;

template <typename A, typename O>
__global__ void add_row_sums_kernel(O* __restrict__ out, const A* __restrict__ partials, std::int64_t rows,
                                    std::int64_t columns, bool accumulate) {
  const std::int64_t begin = blockIdx.x * kColumns, end = min(columns, begin + kColumns);
  REF5D_SIMD
  for (std::int64_t c = begin + threadIdx.x; c < end; c += blockDim.x) {
    A sum = partials[c];
    for (std::int64_t p = 1; p < rows; ++p) sum += partials[p * columns + c];
    out[c] = O(accumulate ? A(out[c]) + sum : sum);
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
