#include <stdexcept>

#include "common/device/launch.h"
#include "common/kernels/rows.h"

namespace ref5d {
namespace {

// One block per row of y. Copies bits, whatever they mean; bits of 0 are a zero in every dtype.
template <typename Bits>
__global__ void take_rows_kernel(Bits* __restrict__ y, const Bits* __restrict__ x, const std::int32_t* __restrict__ index,
                                 std::int64_t x_rows, std::int64_t columns, std::int64_t y_ld, std::int64_t x_ld) {
  const std::int64_t row = index[blockIdx.x];
  Bits* __restrict__ to = y + blockIdx.x * y_ld;
  if (row < 0 || row >= x_rows) {
    for (std::int64_t c = threadIdx.x; c < columns; c += blockDim.x) to[c] = 0;
    return;
  }
  const Bits* __restrict__ from = x + row * x_ld;
  for (std::int64_t c = threadIdx.x; c < columns; c += blockDim.x) to[c] = from[c];
}

template <typename Bits>
void launch_take(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& index) {
  launch<take_rows_kernel<Bits>>(stream, unsigned(y.dim(0)), block_size(256), y.data<Bits>(), x.data<Bits>(),
                                 index.data<std::int32_t>(), x.dim(0), y.dim(1), y.ld(), x.ld());
}

}  // namespace

void take_rows(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& index) {
  const std::int64_t rows = index.numel();
  expect(index, {rows}, Dtype::kInt32, "take_rows index");
  expect(x, {x.dim(0), x.dim(1)}, x.dtype(), "take_rows x");
  expect(y, {rows, x.dim(1)}, x.dtype(), "take_rows y");
  if (rows == 0) return;
  switch (dtype_size(x.dtype())) {
    case 8: return launch_take<std::uint64_t>(stream, y, x, index);
    case 4: return launch_take<std::uint32_t>(stream, y, x, index);
    case 2: return launch_take<std::uint16_t>(stream, y, x, index);
    default: throw std::logic_error("take_rows is for elements of 2, 4 or 8 bytes");
  }
}

}  // namespace ref5d
