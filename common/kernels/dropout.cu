#include <cmath>

#include "common/device/launch.h"
#include "common/kernels/dispatch.h"
#include "common/kernels/dropout.h"
#include "common/kernels/philox.h"

namespace ref5d {
namespace {

// One block per row; a thread draws for four channels at a time. In place, x is y and only y is used.
template <typename T, bool kInPlace>
__global__ void dropout_kernel(T* y, const T* x, const std::int32_t* sample, const std::int32_t* order, std::int64_t columns,
                               std::uint64_t key, std::uint32_t layer_and_site, std::uint32_t threshold, Acc<T> factor) {
  using A = Acc<T>;
  const std::int64_t row = blockIdx.x;
  const auto row_sample = static_cast<std::uint32_t>(sample[row]), row_order = static_cast<std::uint32_t>(order[row]);
  T* yr = y + row * columns;
  const T* xr = kInPlace ? yr : x + row * columns;
  auto draw = [=](std::int64_t quad) {
    return philox(key, {row_sample, row_order, static_cast<std::uint32_t>(quad), layer_and_site});
  };
  auto put = [=](std::int64_t c, std::uint32_t number) {
    const A scaled = A(xr[c]) * factor;
    yr[c] = T(number >= threshold ? scaled : A(0));
  };
  for (std::int64_t quad = threadIdx.x; quad < columns / 4; quad += blockDim.x) {
    const Uint4 u = draw(quad);
    put(4 * quad, u.x);
    put(4 * quad + 1, u.y);
    put(4 * quad + 2, u.z);
    put(4 * quad + 3, u.w);
  }
  if (columns % 4 != 0 && threadIdx.x == columns / 4 % blockDim.x) {
    const std::int64_t quad = columns / 4;
    const Uint4 u = draw(quad);
    const std::uint32_t numbers[3] = {u.x, u.y, u.z};
    for (std::int64_t c = 4 * quad; c < columns; ++c) put(c, numbers[c % 4]);
  }
}

}  // namespace

void dropout(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& sample, const Tensor& order, const DropoutKey& key,
             double p) {
  const std::int64_t rows = x.dim(0), columns = x.dim(1);
  expect(x, {rows, columns}, x.dtype(), "dropout x");
  expect(y, {rows, columns}, x.dtype(), "dropout y");
  expect(sample, {rows}, Dtype::kInt32, "dropout sample");
  expect(order, {rows}, Dtype::kInt32, "dropout order");
  for (const Tensor* t : {&x, &y}) expect_contiguous(*t, "dropout");
  // A number u = r * 2^-32 of the 32-bit r is kept if u >= p, that is if r >= p * 2^32.
  const double threshold = std::ceil(p * 4294967296.0);
  if (!(p >= 0 && threshold <= 4294967295.0)) {
    throw std::logic_error("the dropout probability is " + std::to_string(p) + ", not in [0, 1)");
  }
  if (key.layer >= 1u << 24) throw std::logic_error("dropout keys hold layers below 2^24, not " + std::to_string(key.layer));
  if (p == 0) {
    if (y.raw() != x.raw()) copy_on_device(stream, y.raw(), x.raw(), x.bytes());
    return;
  }
  const std::uint64_t philox_key = key.seed ^ (std::uint64_t{key.step} << 32);
  const std::uint32_t layer_and_site = key.layer | static_cast<std::uint32_t>(key.site) << 24;
  dispatch(x.dtype(), [&]<typename T>() {
    auto start = [&]<bool kInPlace>() {
      launch<dropout_kernel<T, kInPlace>>(stream, unsigned(rows), block_size(256), y.data<T>(), x.data<T>(),
                                          sample.data<std::int32_t>(), order.data<std::int32_t>(), columns, philox_key,
                                          layer_and_site, static_cast<std::uint32_t>(threshold), Acc<T>(1 / (1 - p)));
    };
    if (y.raw() == x.raw()) {
      start.template operator()<true>();
    } else {
      start.template operator()<false>();
    }
  });
}

}  // namespace ref5d
