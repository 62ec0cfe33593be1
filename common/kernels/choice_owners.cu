#include <stdexcept>
#include <string>

#include "common/device/launch.h"
#include "common/kernels/choice_owners.h"
#include "common/kernels/dispatch.h"

namespace ref5d {
namespace {

__global__ void owners_of_choices_kernel(std::int32_t* __restrict__ owners, const std::int32_t* __restrict__ chosen,
                                         const std::int32_t* __restrict__ owner, std::int64_t slots, std::int64_t k,
                                         std::int64_t owner_count) {
  for (std::int64_t i : grid_range(slots)) {
    const std::int64_t row = i / owner_count, m = i % owner_count;
    std::int32_t found = -1;
    for (std::int64_t j = 0; j < k; ++j) {
      const std::int32_t e = chosen[row * k + j];
      if (e >= 0 && owner[e] == m) found = std::int32_t(m);
    }
    owners[i] = found;
  }
}

template <typename A>
__global__ void take_choices_kernel(std::int32_t* __restrict__ taken, A* __restrict__ taken_weights,
                                    const std::int32_t* __restrict__ chosen, const A* __restrict__ weights,
                                    const std::int32_t* __restrict__ owner, const std::int32_t* __restrict__ order,
                                    std::int64_t n, std::int64_t k, std::int64_t owner_count) {
  for (std::int64_t i : grid_range(n * k)) {
    const std::int64_t slot = order[i / k], from = slot / owner_count * k + i % k;
    const std::int32_t e = chosen[from];
    const bool theirs = e >= 0 && owner[e] == slot % owner_count;
    taken[i] = theirs ? e : -1;
    taken_weights[i] = theirs ? weights[from] : A();
  }
}

__global__ void choices_of_range_kernel(std::int32_t* __restrict__ mine, const std::int32_t* __restrict__ chosen,
                                        std::int64_t slots, std::int64_t begin, std::int64_t end) {
  for (std::int64_t i : grid_range(slots)) mine[i] = chosen[i] >= begin && chosen[i] < end ? chosen[i] : -1;
}

}  // namespace

void owners_of_choices(Stream& stream, const Tensor& owners, const Tensor& chosen, const Tensor& owner) {
  expect_matrix(chosen, "owners_of_choices chosen");
  expect_matrix(owners, "owners_of_choices owners");
  const std::int64_t rows = chosen.dim(0), k = chosen.dim(1), m = owners.dim(1);
  expect(owners, {rows, m}, Dtype::kInt32, "owners_of_choices owners");
  expect(chosen, {rows, k}, Dtype::kInt32, "owners_of_choices chosen");
  expect(owner, {owner.numel()}, Dtype::kInt32, "owners_of_choices owner");
  for (const Tensor* t : {&owners, &chosen, &owner}) expect_contiguous(*t, "owners_of_choices");
  if (rows * m == 0) return;
  launch<owners_of_choices_kernel>(stream, grid_for(rows * m), block_size(256), owners.data<std::int32_t>(),
                                   chosen.data<std::int32_t>(), owner.data<std::int32_t>(), rows * m, k, m);
}

void take_choices(Stream& stream, const Tensor& taken, const Tensor& taken_weights, const Tensor& chosen, const Tensor& weights,
                  const Tensor& owner, const Tensor& order, int owners) {
  if (owners < 1) throw std::logic_error("take_choices needs at least one owner, not " + std::to_string(owners));
  expect_matrix(chosen, "take_choices chosen");
  const std::int64_t n = order.numel(), rows = chosen.dim(0), k = chosen.dim(1);
  expect(order, {n}, Dtype::kInt32, "take_choices order");
  expect(chosen, {rows, k}, Dtype::kInt32, "take_choices chosen");
  expect(weights, {rows, k}, accumulator_of(weights.dtype()), "take_choices weights");
  expect(taken, {n, k}, Dtype::kInt32, "take_choices taken");
  expect(taken_weights, {n, k}, weights.dtype(), "take_choices taken weights");
  expect(owner, {owner.numel()}, Dtype::kInt32, "take_choices owner");
  for (const Tensor* t : {&taken, &taken_weights, &chosen, &weights, &owner, &order}) expect_contiguous(*t, "take_choices");
  if (n * k == 0) return;
  dispatch(weights.dtype(), [&]<typename A>() {
    launch<take_choices_kernel<A>>(stream, grid_for(n * k), block_size(256), taken.data<std::int32_t>(),
                                   taken_weights.data<A>(), chosen.data<std::int32_t>(), weights.data<A>(),
                                   owner.data<std::int32_t>(), order.data<std::int32_t>(), n, k, std::int64_t{owners});
  });
}

void choices_of_range(Stream& stream, const Tensor& mine, const Tensor& chosen, std::int64_t begin, std::int64_t end) {
  expect(mine, chosen.shape(), Dtype::kInt32, "choices_of_range mine");
  expect(chosen, chosen.shape(), Dtype::kInt32, "choices_of_range chosen");
  for (const Tensor* t : {&mine, &chosen}) expect_contiguous(*t, "choices_of_range");
  if (chosen.numel() == 0) return;
  launch<choices_of_range_kernel>(stream, grid_for(chosen.numel()), block_size(256), mine.data<std::int32_t>(),
                                  chosen.data<std::int32_t>(), chosen.numel(), begin, end);
}

}  // namespace ref5d
