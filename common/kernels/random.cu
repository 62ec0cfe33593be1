#include "common/device/launch.h"
#include "common/kernels/dispatch.h"
#include "common/kernels/philox.h"
#include "common/kernels/random.h"

namespace ref5d {
namespace {

// Two independent numbers of the standard normal distribution (Box and Muller 1958) from 2 x 53 random bits. The first uniform
// is in (0, 1], so its logarithm is finite.
struct NormalPair {
  double even, odd;
};
__device__ inline NormalPair normal_pair(std::uint64_t seed, std::uint64_t key, std::uint64_t pair) {
  const Uint4 r = philox(seed, {static_cast<std::uint32_t>(pair), static_cast<std::uint32_t>(pair >> 32),
                                static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32)});
  constexpr double kUnit = 1.0 / 9007199254740992.0;  // 2^-53
  const double u = double(((std::uint64_t{r.x} << 32 | r.y) >> 11) + 1) * kUnit;
  const double v = double((std::uint64_t{r.z} << 32 | r.w) >> 11) * kUnit;
  const double radius = sqrt(-2.0 * log(u)), angle = 6.283185307179586476925 * v;
  return {radius * cos(angle), radius * sin(angle)};
}

// One block per row; a thread draws for elements 2p and 2p + 1 of the global matrix, of which a window's row may have only one.
template <typename T>
__global__ void fill_normal_kernel(T* __restrict__ out, std::int64_t columns, std::int64_t ld, GlobalWindow window,
                                   std::uint64_t seed, std::uint64_t key, double mean, double deviation) {
  const std::int64_t row = blockIdx.x;
  const std::int64_t begin = (window.row_begin + row) * window.global_columns + window.column_begin, end = begin + columns;
  T* to = out + row * ld;
  for (std::int64_t pair = begin / 2 + threadIdx.x; 2 * pair < end; pair += blockDim.x) {
    const NormalPair z = normal_pair(seed, key, static_cast<std::uint64_t>(pair));
    if (2 * pair >= begin) to[2 * pair - begin] = T(static_cast<float>(mean + deviation * z.even));
    if (2 * pair + 1 < end) to[2 * pair + 1 - begin] = T(static_cast<float>(mean + deviation * z.odd));
  }
}

template <typename T>
__global__ void fill_constant_kernel(T* __restrict__ out, std::int64_t n, T value) {
  for (std::int64_t i : grid_range(n)) out[i] = value;
}

}  // namespace

std::uint64_t hash_bytes(std::string_view bytes, std::uint64_t hash) {
  for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return hash;
}

void fill_normal(Stream& stream, const Tensor& out, const GlobalWindow& window, std::uint64_t seed, std::uint64_t key,
                 double mean, double std) {
  const std::int64_t rows = out.dim(0), columns = out.dim(1);
  expect(out, {rows, columns}, out.dtype(), "fill_normal out");
  if (window.row_begin < 0 || window.column_begin < 0 || window.column_begin + columns > window.global_columns) {
    throw std::logic_error("fill_normal: columns from " + std::to_string(window.column_begin) + " of " +
                           to_string(out.shape()) + " leave the " + std::to_string(window.global_columns) + " global columns");
  }
  dispatch(out.dtype(), [&]<typename T>() {
    launch<fill_normal_kernel<T>>(stream, unsigned(rows), block_size(256), out.data<T>(), columns, out.ld(), window, seed, key,
                                  mean, std);
  });
}

void fill_constant(Stream& stream, const Tensor& out, double value) {
  expect_contiguous(out, "fill_constant");
  const std::int64_t n = out.numel();
  dispatch(out.dtype(), [&]<typename T>() {
    launch<fill_constant_kernel<T>>(stream, grid_for(n), block_size(256), out.data<T>(), n, T(value));
  });
}

}  // namespace ref5d
