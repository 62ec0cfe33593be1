#include "common/device/launch.h"
#include "common/kernels/dispatch.h"
#include "common/kernels/embedding.h"
#include "common/kernels/sort.h"

namespace ref5d {
namespace {

// One block per token.
template <typename T>
__global__ void embedding_forward_kernel(T* __restrict__ y, const T* __restrict__ table, const std::int32_t* __restrict__ index,
                                         std::int64_t vocab, std::int64_t columns, bool accumulate) {
  using A = Acc<T>;
  const std::int64_t token = blockIdx.x, row = index[token];
  const bool present = row >= 0 && row < vocab;
  T* yr = y + token * columns;
  if (present) {
    const T* from = table + row * columns;
    for (std::int64_t c = threadIdx.x; c < columns; c += blockDim.x) yr[c] = accumulate ? T(A(yr[c]) + A(from[c])) : from[c];
  } else if (!accumulate) {
    for (std::int64_t c = threadIdx.x; c < columns; c += blockDim.x) yr[c] = T(A(0));
  }
}

// An index outside of the table becomes `vocab`, which sorts last.
__global__ void embedding_keys_kernel(std::int32_t* __restrict__ keys, const std::int32_t* __restrict__ index,
                                      std::int64_t tokens, std::int32_t vocab) {
  for (std::int64_t t : grid_range(tokens)) keys[t] = index[t] >= 0 && index[t] < vocab ? index[t] : vocab;
}

constexpr int kTileColumns = 1024;

// One block per sorted position; the block whose position begins a run of equal keys sums the run, a tile of columns at a
// time. A thread owns its columns, so the sums need no barrier.
template <typename T, typename O>
__global__ void embedding_backward_kernel(O* __restrict__ dtable, const T* __restrict__ dy,
                                          const std::int32_t* __restrict__ keys, const std::int32_t* __restrict__ order,
                                          std::int64_t tokens, std::int64_t vocab, std::int64_t columns) {
  using A = Acc<T>;
  const std::int64_t begin = blockIdx.x;
  const std::int32_t key = keys[order[begin]];
  if (key == vocab || (begin > 0 && keys[order[begin - 1]] == key)) return;
  A* __restrict__ sums = shared<A, kTileColumns>();
  for (std::int64_t tile = 0; tile < columns; tile += kTileColumns) {
    const std::int64_t width = min(std::int64_t{kTileColumns}, columns - tile);
    for (std::int64_t c = threadIdx.x; c < width; c += blockDim.x) sums[c] = 0;
    for (std::int64_t p = begin; p < tokens && keys[order[p]] == key; ++p) {
      const T* from = dy + order[p] * columns + tile;
      for (std::int64_t c = threadIdx.x; c < width; c += blockDim.x) sums[c] += A(from[c]);
    }
    O* to = dtable + key * columns + tile;
    for (std::int64_t c = threadIdx.x; c < width; c += blockDim.x) to[c] = O(A(to[c]) + sums[c]);
  }
}

__global__ void part_rows_kernel(std::int32_t* __restrict__ rows, const std::int32_t* __restrict__ tokens, std::int64_t n,
                                 std::int64_t first, std::int64_t count, std::int32_t elsewhere) {
  for (std::int64_t t : grid_range(n)) {
    const std::int64_t row = tokens[t] - first;
    rows[t] = row >= 0 && row < count ? static_cast<std::int32_t>(row) : elsewhere;
  }
}

}  // namespace

void embedding_forward(Stream& stream, const Tensor& y, const Tensor& table, const Tensor& index, bool accumulate) {
  const std::int64_t tokens = index.numel(), vocab = table.dim(0), columns = table.dim(1);
  expect(table, {vocab, columns}, table.dtype(), "embedding table");
  expect(index, {tokens}, Dtype::kInt32, "embedding index");
  expect(y, {tokens, columns}, table.dtype(), "embedding y");
  for (const Tensor* t : {&table, &y}) expect_contiguous(*t, "embedding");
  dispatch(table.dtype(), [&]<typename T>() {
    launch<embedding_forward_kernel<T>>(stream, unsigned(tokens), block_size(256), y.data<T>(), table.data<T>(),
                                        index.data<std::int32_t>(), vocab, columns, accumulate);
  });
}

void embedding_backward(Stream& stream, const Tensor& dtable, const Tensor& dy, const Tensor& index) {
  const std::int64_t tokens = index.numel(), vocab = dtable.dim(0), columns = dtable.dim(1);
  expect(index, {tokens}, Dtype::kInt32, "embedding index");
  expect(dy, {tokens, columns}, dy.dtype(), "embedding dy");
  expect(dtable, {vocab, columns}, dtable.dtype(), "embedding dtable");
  for (const Tensor* t : {&dtable, &dy}) expect_contiguous(*t, "embedding");
  const Tensor keys = Tensor::empty({tokens}, Dtype::kInt32, MemoryCategory::kWorkspace, stream);
  const Tensor order = Tensor::empty({tokens}, Dtype::kInt32, MemoryCategory::kWorkspace, stream);
  launch<embedding_keys_kernel>(stream, grid_for(tokens), block_size(256), keys.data<std::int32_t>(),
                                index.data<std::int32_t>(), tokens, std::int32_t(vocab));
  stable_sort(stream, order, keys, vocab + 1);
  dispatch_with_output(dy.dtype(), dtable.dtype(), [&]<typename T, typename O>() {
    launch<embedding_backward_kernel<T, O>>(stream, unsigned(tokens), block_size(256), dtable.data<O>(), dy.data<T>(),
                                            keys.data<std::int32_t>(), order.data<std::int32_t>(), tokens, vocab, columns);
  });
}

void part_rows(Stream& stream, const Tensor& rows, const Tensor& tokens, std::int64_t first, std::int64_t count, bool clamp) {
  const std::int64_t n = tokens.numel();
  expect(tokens, {n}, Dtype::kInt32, "part_rows tokens");
  expect(rows, {n}, Dtype::kInt32, "part_rows rows");
  launch<part_rows_kernel>(stream, grid_for(n), block_size(256), rows.data<std::int32_t>(), tokens.data<std::int32_t>(), n,
                           first, count, clamp ? 0 : -1);
}

}  // namespace ref5d
