#include "common/device/launch.h"
#include "common/kernels/dispatch.h"
#include "common/kernels/gemm_backend.h"

namespace ref5d::gemm_backend {
namespace {

// A block per row of `to`.
template <typename O, typename T>
__global__ void gemm_copy_corner_kernel(O* __restrict__ to, const T* __restrict__ from, std::int64_t to_columns,
                                        std::int64_t from_rows, std::int64_t from_columns, std::int64_t ld_to,
                                        std::int64_t ld_from) {
  const std::int64_t row = blockIdx.x;
  const std::int64_t columns = row >= from_rows ? 0 : from_columns < to_columns ? from_columns : to_columns;
  O* out = to + row * ld_to;
  const T* in = from + row * ld_from;
  for (std::int64_t i = threadIdx.x; i < columns; i += blockDim.x) out[i] = O(Acc<T>(in[i]));
  for (std::int64_t i = columns + threadIdx.x; i < to_columns; i += blockDim.x) out[i] = O(0.0f);
}

}  // namespace

void copy_corner(Stream& stream, const Tensor& to, const Tensor& from) {
  dispatch(to.dtype(), [&]<typename O>() {
    dispatch(from.dtype(), [&]<typename T>() {
      launch<gemm_copy_corner_kernel<O, T>>(stream, static_cast<unsigned>(to.dim(0)), block_size(256), to.data<O>(),
                                            from.data<T>(), to.dim(1), from.dim(0), from.dim(1), to.ld(), from.ld());
    });
  });
}

}  // namespace ref5d::gemm_backend
