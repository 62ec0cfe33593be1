#include <stdexcept>
#include <string>

#include "common/device/launch.h"
#include "common/kernels/dispatch.h"
#include "common/kernels/expert_rows.h"
#include "common/kernels/sort.h"

namespace ref5d {
namespace {

// None becomes `experts`, which sorts last.
__global__ void slot_keys_kernel(std::int32_t* __restrict__ keys, const std::int32_t* __restrict__ chosen, std::int64_t slots,
                                 std::int32_t experts) {
  for (std::int64_t s : grid_range(slots)) keys[s] = chosen[s] >= 0 && chosen[s] < experts ? chosen[s] : experts;
}

// How many slots have keys below `limit`, by a binary search in their order.
__device__ inline std::int32_t slots_below(const std::int32_t* __restrict__ keys, const std::int32_t* __restrict__ order,
                                           std::int32_t slots, std::int32_t limit) {
  std::int32_t begin = 0, end = slots;
  while (begin < end) {
    const std::int32_t middle = begin + (end - begin) / 2;
    if (keys[order[middle]] < limit) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin;
}

__global__ void slot_counts_kernel(std::int32_t* __restrict__ counts, const std::int32_t* __restrict__ keys,
                                   const std::int32_t* __restrict__ order, std::int32_t slots, std::int64_t experts) {
  for (std::int64_t e : grid_range(experts)) {
    const auto expert = static_cast<std::int32_t>(e);
    counts[e] = slots_below(keys, order, slots, expert + 1) - slots_below(keys, order, slots, expert);
  }
}

__global__ void clear_places_kernel(std::int32_t* __restrict__ place, std::int64_t slots) {
  for (std::int64_t s : grid_range(slots)) place[s] = -1;
}

// No slot is in an order twice, so no two threads write the same place.
__global__ void set_places_kernel(std::int32_t* __restrict__ place, const std::int32_t* __restrict__ order, std::int64_t n) {
  for (std::int64_t i : grid_range(n)) {
    if (order[i] >= 0) place[order[i]] = static_cast<std::int32_t>(i);
  }
}

// One block per row of y. Without weights the row itself, which is then not rounded again.
template <typename T>
__global__ void take_slots_kernel(T* __restrict__ y, const T* __restrict__ x, const std::int32_t* __restrict__ order,
                                  const Acc<T>* __restrict__ weights, int k, std::int64_t columns) {
  using A = Acc<T>;
  const std::int64_t slot = order[blockIdx.x];
  T* __restrict__ to = y + blockIdx.x * columns;
  if (slot < 0) {
    for (std::int64_t c = threadIdx.x; c < columns; c += blockDim.x) to[c] = T(A(0));
    return;
  }
  const T* __restrict__ from = x + slot / k * columns;
  if (weights == nullptr) {
    for (std::int64_t c = threadIdx.x; c < columns; c += blockDim.x) to[c] = from[c];
  } else {
    const A weight = weights[slot];
    for (std::int64_t c = threadIdx.x; c < columns; c += blockDim.x) to[c] = T(weight * A(from[c]));
  }
}

// Columns that a block sums at a time, a thread for each or one for all, so that sums stay in registers on a GPU.
constexpr int kColumns = 256, kThreads = static_cast<int>(block_size(kColumns)), kPerThread = kColumns / kThreads;

// One block per row of y.
template <typename T>
__global__ void sum_slots_kernel(T* __restrict__ y, const T* __restrict__ rows, const std::int32_t* __restrict__ place,
                                 const Acc<T>* __restrict__ weights, int k, std::int64_t columns) {
  using A = Acc<T>;
  const std::int64_t row = blockIdx.x;
  for (std::int64_t first = threadIdx.x; first < columns; first += kColumns) {
    // This thread's columns of these: first, first + kThreads, ...
    const int count = static_cast<int>(min(std::int64_t{kPerThread}, (columns - first + kThreads - 1) / kThreads));
    A sum[kPerThread] = {};
    for (std::int64_t slot = row * k; slot < (row + 1) * k; ++slot) {
      if (place[slot] < 0) continue;
      const T* __restrict__ from = rows + place[slot] * columns + first;
      const A weight = weights == nullptr ? A(1) : weights[slot];
      for (int i = 0; i < count; ++i) sum[i] += weight * A(from[i * kThreads]);
    }
    T* __restrict__ to = y + row * columns + first;
    for (int i = 0; i < count; ++i) to[i * kThreads] = T(sum[i]);
  }
}

// One block per slot.
template <typename T>
__global__ void slot_weights_backward_kernel(Acc<T>* __restrict__ dweights, const T* __restrict__ dy,
                                             const T* __restrict__ rows, const std::int32_t* __restrict__ place, int k,
                                             std::int64_t columns) {
  using A = Acc<T>;
  const std::int64_t slot = blockIdx.x, at = place[slot];
  if (at < 0) {  // for all threads of the block
    if (threadIdx.x == 0) dweights[slot] = 0;
    return;
  }
  const T* __restrict__ d = dy + slot / k * columns;
  const T* __restrict__ row = rows + at * columns;
  A dot = 0;
  REF5D_SIMD_SUM(dot)
  for (std::int64_t c = threadIdx.x; c < columns; c += blockDim.x) dot += A(d[c]) * A(row[c]);
  dot = block_sum(dot);
  if (threadIdx.x == 0) dweights[slot] = dot;
}

// In the order by expert, a slot has `capacity` slots of its expert before it if the one that far before is its expert's.
__global__ void drop_beyond_capacity_kernel(std::int32_t* __restrict__ kept, const std::int32_t* __restrict__ chosen,
                                            const std::int32_t* __restrict__ order, std::int64_t slots, std::int64_t capacity) {
  for (std::int64_t i : grid_range(slots)) {
    const std::int32_t slot = order[i], expert = chosen[slot];
    const bool full = i >= capacity && chosen[order[i - capacity]] == expert;
    kept[slot] = full ? -1 : expert;
  }
}

void expect_dense(const Tensor& t, const Shape& shape, Dtype dtype, const char* what) {
  expect(t, shape, dtype, what);
  expect_contiguous(t, what);
}

void launch_take(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& order, const Tensor& weights, int k) {
  const std::int64_t n = order.numel(), columns = x.dim(1);
  dispatch(x.dtype(), [&]<typename T>() {
    launch<take_slots_kernel<T>>(stream, unsigned(n), block_size(256), y.data<T>(), x.data<T>(), order.data<std::int32_t>(),
                                 weights ? weights.data<Acc<T>>() : nullptr, k, columns);
  });
}

}  // namespace

void sort_slots(Stream& stream, const Tensor& order, const Tensor& counts, const Tensor& chosen) {
  const std::int64_t slots = chosen.numel(), experts = counts.numel();
  expect_matrix(chosen, "sort_slots chosen");
  expect_dense(chosen, chosen.shape(), Dtype::kInt32, "sort_slots chosen");
  expect(order, {slots}, Dtype::kInt32, "sort_slots order");
  expect(counts, {experts}, Dtype::kInt32, "sort_slots counts");
  const Tensor keys = Tensor::empty({slots}, Dtype::kInt32, MemoryCategory::kWorkspace, stream);
  launch<slot_keys_kernel>(stream, grid_for(slots), block_size(256), keys.data<std::int32_t>(), chosen.data<std::int32_t>(),
                           slots, std::int32_t(experts));
  stable_sort(stream, order, keys, experts + 1);
  launch<slot_counts_kernel>(stream, grid_for(experts), block_size(256), counts.data<std::int32_t>(), keys.data<std::int32_t>(),
                             order.data<std::int32_t>(), std::int32_t(slots), experts);
}

void invert_order(Stream& stream, const Tensor& place, const Tensor& order) {
  const std::int64_t slots = place.numel(), n = order.numel();
  expect(order, {n}, Dtype::kInt32, "invert_order order");
  expect(place, {slots}, Dtype::kInt32, "invert_order place");
  launch<clear_places_kernel>(stream, grid_for(slots), block_size(256), place.data<std::int32_t>(), slots);
  launch<set_places_kernel>(stream, grid_for(n), block_size(256), place.data<std::int32_t>(), order.data<std::int32_t>(), n);
}

void take_slots(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& order, int k) {
  const std::int64_t n = order.numel();
  if (k < 1) throw std::logic_error("take_slots needs at least one choice a row, not " + std::to_string(k));
  expect(order, {n}, Dtype::kInt32, "take_slots order");
  expect_matrix(x, "take_slots x");
  expect_contiguous(x, "take_slots x");
  expect_dense(y, {n, x.dim(1)}, x.dtype(), "take_slots y");
  launch_take(stream, y, x, order, Tensor(), k);
}

void sum_slots(Stream& stream, const Tensor& y, const Tensor& rows, const Tensor& place, const Tensor& weights) {
  expect_matrix(rows, "sum_slots rows");
  expect_contiguous(rows, "sum_slots rows");
  expect_matrix(place, "sum_slots place");
  expect_dense(place, place.shape(), Dtype::kInt32, "sum_slots place");
  const std::int64_t tokens = place.dim(0), columns = rows.dim(1);
  expect_dense(y, {tokens, columns}, rows.dtype(), "sum_slots y");
  if (weights) expect_dense(weights, place.shape(), accumulator_of(y.dtype()), "sum_slots weights");
  dispatch(y.dtype(), [&]<typename T>() {
    launch<sum_slots_kernel<T>>(stream, unsigned(tokens), block_size(kColumns), y.data<T>(), rows.data<T>(),
                                place.data<std::int32_t>(), weights ? weights.data<Acc<T>>() : nullptr, int(place.dim(1)),
                                columns);
  });
}

void sum_slots_backward(Stream& stream, const Tensor& drows, const Tensor& dy, const Tensor& order, const Tensor& weights) {
  const std::int64_t n = order.numel();
  expect(order, {n}, Dtype::kInt32, "sum_slots_backward order");
  expect_matrix(dy, "sum_slots_backward dy");
  expect_contiguous(dy, "sum_slots_backward dy");
  expect_matrix(weights, "sum_slots_backward weights");
  expect_dense(weights, {dy.dim(0), weights.dim(1)}, accumulator_of(dy.dtype()), "sum_slots_backward weights");
  expect_dense(drows, {n, dy.dim(1)}, dy.dtype(), "sum_slots_backward drows");
  launch_take(stream, drows, dy, order, weights, int(weights.dim(1)));
}

void slot_weights_backward(Stream& stream, const Tensor& dweights, const Tensor& dy, const Tensor& rows, const Tensor& place) {
  expect_matrix(dy, "slot_weights_backward dy");
  expect_contiguous(dy, "slot_weights_backward dy");
  expect_matrix(rows, "slot_weights_backward rows");
  expect_dense(rows, {rows.dim(0), dy.dim(1)}, dy.dtype(), "slot_weights_backward rows");
  expect_matrix(place, "slot_weights_backward place");
  expect_dense(place, {dy.dim(0), place.dim(1)}, Dtype::kInt32, "slot_weights_backward place");
  expect_dense(dweights, place.shape(), accumulator_of(dy.dtype()), "slot_weights_backward dweights");
  dispatch(dy.dtype(), [&]<typename T>() {
    launch<slot_weights_backward_kernel<T>>(stream, unsigned(place.numel()), block_size(256), dweights.data<Acc<T>>(),
                                            dy.data<T>(), rows.data<T>(), place.data<std::int32_t>(), int(place.dim(1)),
                                            dy.dim(1));
  });
}

void drop_beyond_capacity(Stream& stream, const Tensor& kept, const Tensor& chosen, const Tensor& order,
                          std::int64_t capacity) {
  const std::int64_t slots = chosen.numel();
  expect_matrix(chosen, "drop_beyond_capacity chosen");
  expect_dense(chosen, chosen.shape(), Dtype::kInt32, "drop_beyond_capacity chosen");
  expect_dense(kept, chosen.shape(), Dtype::kInt32, "drop_beyond_capacity kept");
  expect(order, {slots}, Dtype::kInt32, "drop_beyond_capacity order");
  if (capacity < 0) throw std::logic_error("drop_beyond_capacity: a capacity of " + std::to_string(capacity));
  if (slots > 0 && kept.raw() == chosen.raw())
    throw std::logic_error("drop_beyond_capacity cannot overwrite chosen, which says where each expert's slots begin");
  launch<drop_beyond_capacity_kernel>(stream, grid_for(slots), block_size(256), kept.data<std::int32_t>(),
                                      chosen.data<std::int32_t>(), order.data<std::int32_t>(), slots, capacity);
}

}  // namespace ref5d
