#include "common/device/launch.h"
#include "common/kernels/correction_bias.h"
#include "common/kernels/dispatch.h"

namespace ref5d {
namespace {

template <typename T>
__global__ void move_bias_kernel(T* __restrict__ bias, const double* __restrict__ counts, std::int64_t experts, double speed) {
  double sum = 0;  // of whole numbers: exact
  for (std::int64_t e = 0; e < experts; ++e) sum += counts[e];
  for (std::int64_t e : grid_range(experts)) {
    // counts < mean, without a division that rounds. -0 changes no bias, also not one of -0.
    const double scaled = counts[e] * double(experts);
    bias[e] = T(double(bias[e]) + (scaled < sum ? speed : scaled > sum ? -speed : -0.0));
  }
}

}  // namespace

void move_correction_bias(Stream& stream, const Tensor& bias, const Tensor& counts, double speed) {
  const std::int64_t experts = counts.numel();
  expect(counts, {experts}, Dtype::kFp64, "move_correction_bias counts");
  expect(bias, {experts}, accumulator_of(bias.dtype()), "move_correction_bias bias");
  for (const Tensor* t : {&bias, &counts}) expect_contiguous(*t, "move_correction_bias");
  if (experts == 0) return;
  dispatch(bias.dtype(), [&]<typename T>() {
    launch<move_bias_kernel<T>>(stream, grid_for(experts), block_size(256), bias.data<T>(), counts.data<double>(), experts,
                                speed);
  });
}

}  // namespace ref5d
