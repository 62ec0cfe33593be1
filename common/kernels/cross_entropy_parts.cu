#include <cmath>
#include <stdexcept>
#include <string>

#include "common/device/launch.h"
#include "common/device/math.h"
#include "common/kernels/cross_entropy_parts.h"
#include "common/kernels/cross_entropy_rows.h"
#include "common/kernels/dispatch.h"
#include "common/tensor/ignore_label.h"

namespace ref5d {
namespace {

// The columns first .. first + count - 1 of a vocabulary.
struct PartOfVocab {
  std::int64_t first, count, vocab;
};

// One block per row.
template <typename T>
__global__ void cross_entropy_part_max_kernel(Acc<T>* __restrict__ greatest, const T* __restrict__ logits,
                                              std::int64_t columns) {
  const std::int64_t row = blockIdx.x;
  const Acc<T> top = row_max(logits + row * columns, columns);
  if (threadIdx.x == 0) greatest[row] = top;
}

// The label's logit less the row's greatest one; 0 if another part has it, NaN if none has, so that it shows.
template <typename T>
__device__ inline Acc<T> part_of_target(const T* x, Acc<T> greatest, std::int32_t label, PartOfVocab part) {
  using A = Acc<T>;
  if (label < 0 || label >= part.vocab) return A(NAN);
  const std::int64_t column = label - part.first;
  return column >= 0 && column < part.count ? A(x[column]) - greatest : A(0);
}

// One block per row.
template <typename T>
__global__ void cross_entropy_part_sums_kernel(Acc<T>* __restrict__ sums, const T* __restrict__ logits,
                                               const Acc<T>* __restrict__ greatest, const std::int32_t* __restrict__ labels,
                                               std::int64_t rows, PartOfVocab part) {
  using A = Acc<T>;
  const std::int64_t row = blockIdx.x;
  const std::int32_t label = labels[row];
  A sum = 0, target = 0;
  if (label != kIgnoreLabel) {
    const T* x = logits + row * part.count;
    sum = row_sum_exp(x, part.count, greatest[row]);
    target = part_of_target(x, greatest[row], label, part);
  }
  if (threadIdx.x == 0) {
    sums[row] = sum;
    sums[rows + row] = target;
  }
}

// One block per row; the gradient replaces the logits.
template <typename T>
__global__ void cross_entropy_from_parts_kernel(T* __restrict__ logits, Acc<T>* __restrict__ loss,
                                                const Acc<T>* __restrict__ greatest, const Acc<T>* __restrict__ sums,
                                                const std::int32_t* __restrict__ labels, std::int64_t rows, PartOfVocab part,
                                                Acc<T> scale) {
  using A = Acc<T>;
  const std::int64_t row = blockIdx.x;
  const std::int32_t label = labels[row];
  T* x = logits + row * part.count;
  if (label == kIgnoreLabel) {
    for (std::int64_t i = threadIdx.x; i < part.count; i += blockDim.x) x[i] = T(A(0));
    if (threadIdx.x == 0) loss[row] = 0;
    return;
  }
  const bool valid = label >= 0 && label < part.vocab;
  const A top = greatest[row], sum = sums[row], target = valid ? sums[rows + row] : A(NAN);
  if (threadIdx.x == 0) loss[row] = log(sum) - target;
  const A factor = valid ? scale / sum : A(NAN);
  for (std::int64_t i = threadIdx.x; i < part.count; i += blockDim.x) x[i] = T(exp_of(A(x[i]) - top) * factor);
  // The label's element again, by the thread that wrote it; its logit is gone, but `target` is what was left of it.
  const std::int64_t column = label - part.first;
  if (valid && column >= 0 && column < part.count && threadIdx.x == column % blockDim.x)
    x[column] = T((exp_of(target) / sum - A(1)) * scale);
}

void expect_logits(const Tensor& logits) {
  expect(logits, {logits.dim(0), logits.dim(1)}, logits.dtype(), "cross_entropy part's logits");
  expect_contiguous(logits, "cross_entropy part's logits");
}

PartOfVocab expect_part(const Tensor& logits, const Tensor& greatest, const Tensor& sums, const Tensor& labels,
                        std::int64_t first, std::int64_t vocab) {
  expect_logits(logits);
  const std::int64_t rows = logits.dim(0), columns = logits.dim(1);
  expect(greatest, {rows}, accumulator_of(logits.dtype()), "cross_entropy part's greatest");
  expect(sums, {2, rows}, accumulator_of(logits.dtype()), "cross_entropy part's sums");
  expect_contiguous(sums, "cross_entropy part's sums");
  expect(labels, {rows}, Dtype::kInt32, "cross_entropy part's labels");
  if (first < 0 || first + columns > vocab)
    throw std::logic_error("a part of " + std::to_string(columns) + " columns from " + std::to_string(first) +
                           " on is not within a vocabulary of " + std::to_string(vocab));
  return {first, columns, vocab};
}

}  // namespace

void cross_entropy_part_max(Stream& stream, const Tensor& greatest, const Tensor& logits) {
  expect_logits(logits);
  expect(greatest, {logits.dim(0)}, accumulator_of(logits.dtype()), "cross_entropy part's greatest");
  dispatch(logits.dtype(), [&]<typename T>() {
    launch<cross_entropy_part_max_kernel<T>>(stream, unsigned(logits.dim(0)), block_size(256), greatest.data<Acc<T>>(),
                                             logits.data<T>(), logits.dim(1));
  });
}

void cross_entropy_part_sums(Stream& stream, const Tensor& sums, const Tensor& logits, const Tensor& greatest,
                             const Tensor& labels, std::int64_t first, std::int64_t vocab) {
  const PartOfVocab part = expect_part(logits, greatest, sums, labels, first, vocab);
  const std::int64_t rows = logits.dim(0);
  dispatch(logits.dtype(), [&]<typename T>() {
    launch<cross_entropy_part_sums_kernel<T>>(stream, unsigned(rows), block_size(256), sums.data<Acc<T>>(), logits.data<T>(),
                                              greatest.data<Acc<T>>(), labels.data<std::int32_t>(), rows, part);
  });
}

void cross_entropy_from_parts(Stream& stream, const Tensor& logits, const Tensor& loss, const Tensor& greatest,
                              const Tensor& sums, const Tensor& labels, std::int64_t first, std::int64_t vocab, double scale) {
  const PartOfVocab part = expect_part(logits, greatest, sums, labels, first, vocab);
  const std::int64_t rows = logits.dim(0);
  expect(loss, {rows}, accumulator_of(logits.dtype()), "cross_entropy part's loss");
  dispatch(logits.dtype(), [&]<typename T>() {
    launch<cross_entropy_from_parts_kernel<T>>(stream, unsigned(rows), block_size(256), logits.data<T>(), loss.data<Acc<T>>(),
                                               greatest.data<Acc<T>>(), sums.data<Acc<T>>(), labels.data<std::int32_t>(), rows,
                                               part, Acc<T>(scale));
  });
}

}  // namespace ref5d
