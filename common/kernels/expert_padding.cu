#include "common/device/launch.h"
#include "common/kernels/expert_padding.h"

namespace ref5d {
namespace {

// One block per expert.
__global__ void pad_slots_kernel(std::int32_t* __restrict__ padded, const std::int32_t* __restrict__ order,
                                 const std::int32_t* __restrict__ counts, std::int64_t rows) {
  const unsigned expert = blockIdx.x;
  std::int64_t begin = 0;
  for (unsigned e = 0; e < expert; ++e) begin += counts[e];
  for (std::int64_t i = threadIdx.x; i < rows; i += blockDim.x)
    padded[expert * rows + i] = i < counts[expert] ? order[begin + i] : -1;
}

}  // namespace

void pad_slots(Stream& stream, const Tensor& padded, const Tensor& order, const Tensor& counts, std::int64_t rows) {
  const std::int64_t experts = counts.numel();
  expect(padded, {experts * rows}, Dtype::kInt32, "pad_slots padded");
  expect(order, {order.numel()}, Dtype::kInt32, "pad_slots order");
  expect(counts, {experts}, Dtype::kInt32, "pad_slots counts");
  for (const Tensor* t : {&padded, &order, &counts}) expect_contiguous(*t, "pad_slots");
  if (experts * rows == 0) return;
  launch<pad_slots_kernel>(stream, unsigned(experts), block_size(256), padded.data<std::int32_t>(), order.data<std::int32_t>(),
                           counts.data<std::int32_t>(), rows);
}

}  // namespace ref5d
