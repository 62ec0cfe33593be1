#include <cmath>
#include <type_traits>

#include "common/device/launch.h"
#include "common/device/math.h"
#include "common/kernels/counted.h"
#include "common/kernels/cross_entropy.h"
#include "common/kernels/cross_entropy_rows.h"
#include "common/kernels/dispatch.h"

namespace ref5d {
namespace {

// The label's logit, or NaN for a label outside of the vocabulary, so that it shows in the loss and the gradient.
template <typename T>
__device__ inline Acc<T> label_logit(const T* x, std::int32_t label, std::int64_t vocab) {
  return label >= 0 && label < vocab ? Acc<T>(x[label]) : Acc<T>(NAN);
}

// One block per row; the gradient replaces the logits.
template <typename T>
__global__ void cross_entropy_kernel(T* __restrict__ logits, Acc<T>* __restrict__ loss, const std::int32_t* __restrict__ labels,
                                     std::int64_t vocab, Acc<T> scale) {
  using A = Acc<T>;
  const std::int64_t row = blockIdx.x;
  const std::int32_t label = labels[row];
  T* x = logits + row * vocab;
  if (label == kIgnoreLabel) {
    for (std::int64_t i = threadIdx.x; i < vocab; i += blockDim.x) x[i] = T(A(0));
    if (threadIdx.x == 0) loss[row] = 0;
    return;
  }
  const A target = label_logit(x, label, vocab);  // before anyone overwrites it: the maximum below is a barrier
  const A greatest = row_max(x, vocab);
  constexpr bool kKeepExp = std::is_same_v<T, A>;  // an exp is dear and loses nothing where the logit was
  A sum = 0;
  if constexpr (kKeepExp) {
    REF5D_SIMD_SUM(sum)
    for (std::int64_t i = threadIdx.x; i < vocab; i += blockDim.x) {
      const A e = exp_of(A(x[i]) - greatest);
      x[i] = e;
      sum += e;
    }
    sum = block_sum(sum);
  } else {
    sum = row_sum_exp(x, vocab, greatest);
  }
  if (threadIdx.x == 0) loss[row] = log(sum) + (greatest - target);
  const A factor = target == target ? scale / sum : target;
  for (std::int64_t i = threadIdx.x; i < vocab; i += blockDim.x)
    x[i] = T((kKeepExp ? A(x[i]) : exp_of(A(x[i]) - greatest)) * factor);
  // The label's element again, by the thread that wrote it.
  if (label >= 0 && label < vocab && threadIdx.x == label % blockDim.x)
    x[label] = T((exp_of(target - greatest) / sum - A(1)) * scale);
}

// One block per row.
template <typename T>
__global__ void cross_entropy_loss_kernel(Acc<T>* __restrict__ loss, const T* __restrict__ logits,
                                          const std::int32_t* __restrict__ labels, std::int64_t vocab) {
  using A = Acc<T>;
  const std::int64_t row = blockIdx.x;
  const std::int32_t label = labels[row];
  if (label == kIgnoreLabel) {
    if (threadIdx.x == 0) loss[row] = 0;
    return;
  }
  const T* x = logits + row * vocab;
  const A greatest = row_max(x, vocab), sum = row_sum_exp(x, vocab, greatest);
  if (threadIdx.x == 0) loss[row] = log(sum) + (greatest - label_logit(x, label, vocab));
}

// One block per row.
template <typename T>
__global__ void softmax_kernel(T* __restrict__ probabilities, const T* __restrict__ logits, std::int64_t vocab) {
  using A = Acc<T>;
  const std::int64_t row = blockIdx.x;
  const T* x = logits + row * vocab;
  const A greatest = row_max(x, vocab), factor = A(1) / row_sum_exp(x, vocab, greatest);
  T* p = probabilities + row * vocab;
  for (std::int64_t i = threadIdx.x; i < vocab; i += blockDim.x) p[i] = T(exp_of(A(x[i]) - greatest) * factor);
}

template <typename T>
__global__ void loss_of_probabilities_kernel(Acc<T>* __restrict__ loss, const T* __restrict__ probabilities,
                                             const std::int32_t* __restrict__ labels, std::int64_t rows, std::int64_t vocab) {
  for (std::int64_t row : grid_range(rows)) {
    const std::int32_t label = labels[row];
    loss[row] = label == kIgnoreLabel ? Acc<T>(0) : -log(label_logit(probabilities + row * vocab, label, vocab));
  }
}

// One block per row.
template <typename T>
__global__ void gradient_of_probabilities_kernel(T* __restrict__ dlogits, const T* __restrict__ probabilities,
                                                 const std::int32_t* __restrict__ labels, std::int64_t vocab, Acc<T> scale) {
  using A = Acc<T>;
  const std::int64_t row = blockIdx.x, label = labels[row];
  const bool ignored = label == kIgnoreLabel;
  const A factor = label >= 0 && label < vocab ? scale : A(NAN);
  for (std::int64_t i = threadIdx.x; i < vocab; i += blockDim.x) {
    const A p = A(probabilities[row * vocab + i]);
    dlogits[row * vocab + i] = T(ignored ? A(0) : (i == label ? p - A(1) : p) * factor);
  }
}

// One block.
template <typename A>
__global__ void add_loss_kernel(double* __restrict__ total, const A* __restrict__ loss, std::int64_t n) {
  double sum = 0;
  REF5D_SIMD_SUM(sum)
  for (std::int64_t i = threadIdx.x; i < n; i += blockDim.x) sum += double(loss[i]);
  sum = block_sum(sum);
  if (threadIdx.x == 0) total[0] += sum;
}

void expect_rows(const Tensor& logits, const Tensor& loss, const Tensor& labels) {
  const std::int64_t rows = logits.dim(0);
  expect(logits, {rows, logits.dim(1)}, logits.dtype(), "cross_entropy logits");
  expect_contiguous(logits, "cross_entropy logits");
  expect(loss, {rows}, accumulator_of(logits.dtype()), "cross_entropy loss");
  expect(labels, {rows}, Dtype::kInt32, "cross_entropy labels");
}

}  // namespace

void cross_entropy(Stream& stream, const Tensor& logits, const Tensor& loss, const Tensor& labels, double scale) {
  expect_rows(logits, loss, labels);
  dispatch(logits.dtype(), [&]<typename T>() {
    launch<cross_entropy_kernel<T>>(stream, unsigned(logits.dim(0)), block_size(256), reads_and_writes<T>(logits),
                                    writes<Acc<T>>(loss), reads<std::int32_t>(labels), logits.dim(1), Acc<T>(scale));
  });
}

void cross_entropy_loss(Stream& stream, const Tensor& loss, const Tensor& logits, const Tensor& labels) {
  expect_rows(logits, loss, labels);
  dispatch(logits.dtype(), [&]<typename T>() {
    launch<cross_entropy_loss_kernel<T>>(stream, unsigned(logits.dim(0)), block_size(256), loss.data<Acc<T>>(),
                                         logits.data<T>(), labels.data<std::int32_t>(), logits.dim(1));
  });
}

void cross_entropy_unfused(Stream& stream, const Tensor& dlogits, const Tensor& probabilities, const Tensor& loss,
                           const Tensor& logits, const Tensor& labels, double scale) {
  expect_rows(logits, loss, labels);
  const std::int64_t rows = logits.dim(0), vocab = logits.dim(1);
  expect(dlogits, logits.shape(), logits.dtype(), "cross_entropy dlogits");
  expect(probabilities, logits.shape(), logits.dtype(), "cross_entropy probabilities");
  for (const Tensor* t : {&dlogits, &probabilities}) expect_contiguous(*t, "cross_entropy");
  dispatch(logits.dtype(), [&]<typename T>() {
    launch<softmax_kernel<T>>(stream, unsigned(rows), block_size(256), writes<T>(probabilities), reads<T>(logits), vocab);
    // One element of each row: that is not counted as the array's bytes.
    launch<loss_of_probabilities_kernel<T>>(stream, grid_for(rows), block_size(256), writes<Acc<T>>(loss),
                                            probabilities.data<T>(), reads<std::int32_t>(labels), rows, vocab);
    launch<gradient_of_probabilities_kernel<T>>(stream, unsigned(rows), block_size(256), writes<T>(dlogits),
                                                reads<T>(probabilities), reads<std::int32_t>(labels), vocab, Acc<T>(scale));
  });
}

void add_loss(Stream& stream, const Tensor& total, const Tensor& loss) {
  expect(total, {1}, Dtype::kFp64, "add_loss total");
  expect(loss, {loss.numel()}, accumulator_of(loss.dtype()), "add_loss loss");
  dispatch(loss.dtype(), [&]<typename T>() {
    launch<add_loss_kernel<Acc<T>>>(stream, 1, block_size(256), total.data<double>(), loss.data<Acc<T>>(), loss.numel());
  });
}

}  // namespace ref5d
