// The losses that keep the router's load even and its logits small; the rest of router.h is in router.cu.
#include <cmath>

#include "common/device/launch.h"
#include "common/device/math.h"
#include "common/kernels/cross_entropy_rows.h"
#include "common/kernels/dispatch.h"
#include "common/kernels/router.h"
#include "common/kernels/row_sums.h"

namespace ref5d {
namespace {

// totals [R] = the sum of each row, by one thread each, so that it does not depend on their number.
template <typename A>
__global__ void router_totals_kernel(double* __restrict__ totals, const A* __restrict__ scores, std::int64_t rows,
                                     std::int64_t experts) {
  for (std::int64_t row : grid_range(rows)) {
    double sum = 0;
    for (std::int64_t e = 0; e < experts; ++e) sum += double(scores[row * experts + e]);
    totals[row] = sum == 0 ? 1 : sum;  // scores that have all underflowed
  }
}

// partials [stretches, D, 2, E]: block b sums the b-th stretch of rows, as it is in router_load. A thread has every
// blockDim.x-th expert to itself, so the sums need no barrier. totals: null where the scores are probabilities.
template <typename A>
__global__ void router_load_kernel(double* __restrict__ partials, const A* __restrict__ scores,
                                   const double* __restrict__ totals, const std::int32_t* __restrict__ chosen,
                                   const std::int32_t* __restrict__ sequence, std::int64_t rows, std::int64_t sequences,
                                   std::int64_t experts, std::int64_t top_k) {
  const std::int64_t stretch = (rows + gridDim.x - 1) / gridDim.x;
  const std::int64_t begin = blockIdx.x * stretch, end = min(rows, begin + stretch);
  double* out = partials + blockIdx.x * sequences * 2 * experts;
  for (std::int64_t i = 0; i < 2 * sequences; ++i)
    for (std::int64_t e = threadIdx.x; e < experts; e += blockDim.x) out[i * experts + e] = 0;
  for (std::int64_t row = begin; row < end; ++row) {
    if (sequence[row] < 0) continue;
    double* choices = out + sequence[row] * 2 * experts;
    double* sums = choices + experts;
    const double total = totals == nullptr ? 1 : totals[row];
    for (std::int64_t e = threadIdx.x; e < experts; e += blockDim.x) sums[e] += double(scores[row * experts + e]) / total;
    for (std::int64_t j = 0; j < top_k; ++j) {
      const std::int32_t e = chosen[row * top_k + j];
      if (e >= 0 && static_cast<unsigned>(e) % blockDim.x == threadIdx.x) choices[e] += 1;
    }
  }
}

// One block. factor = coefficient E / D.
template <typename A>
__global__ void balance_loss_kernel(double* __restrict__ loss, A* __restrict__ gradient, const double* __restrict__ load,
                                    const double* __restrict__ lengths, std::int64_t sequences, std::int64_t experts, int top_k,
                                    double factor, double scale) {
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < sequences * experts; i += blockDim.x) {
    const std::int64_t d = i / experts, e = i % experts;
    const double* choices = load + d * 2 * experts;
    const double* probabilities = choices + experts;
    const double length = lengths[d];
    const bool empty = length == 0;  // without rows there is neither f nor P
    const double f = empty ? 0 : choices[e] / (top_k * length);
    sum += empty ? 0 : f * (probabilities[e] / length);
    gradient[i] = empty ? A(0) : A(scale * factor * f / length);
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) loss[0] = factor * sum;
}

// One block per row.
template <typename A>
__global__ void router_z_kernel(double* __restrict__ z, const A* __restrict__ logits, const std::int32_t* __restrict__ sequence,
                                std::int64_t experts) {
  const A* x = logits + blockIdx.x * experts;
  const A greatest = row_max(x, experts), sum = row_sum_exp(x, experts, greatest);
  const double lse = double(log(sum) + greatest);
  if (threadIdx.x == 0) z[blockIdx.x] = sequence[blockIdx.x] < 0 ? 0 : lse * lse;
}

// One block.
__global__ void router_z_sum_kernel(double* __restrict__ sum, const double* __restrict__ z, std::int64_t rows) {
  double mine = 0;
  REF5D_SIMD_SUM(mine)
  for (std::int64_t row = threadIdx.x; row < rows; row += blockDim.x) mine += z[row];
  mine = block_sum(mine);
  if (threadIdx.x == 0) sum[0] = mine;
}

}  // namespace

void router_load(Stream& stream, const Tensor& load, const Tensor& scores, const Tensor& chosen, const Tensor& sequence,
                 ScoreKind kind) {
  const std::int64_t rows = scores.dim(0), experts = scores.dim(1), top_k = chosen.dim(1), sequences = load.dim(0);
  expect(scores, {rows, experts}, accumulator_of(scores.dtype()), "router_load scores");
  expect(chosen, {rows, top_k}, Dtype::kInt32, "router_load chosen");
  expect(sequence, {rows}, Dtype::kInt32, "router_load sequence");
  expect(load, {sequences, 2, experts}, Dtype::kFp64, "router_load load");
  for (const Tensor* t : {&scores, &chosen, &load}) expect_contiguous(*t, "router_load");
  const Tensor totals =
      kind == ScoreKind::kSoftmax ? Tensor() : Tensor::empty({rows}, Dtype::kFp64, MemoryCategory::kWorkspace, stream);
  const Tensor partials = allocate_row_sum_partials(rows, load.numel(), Dtype::kFp64, stream);
  dispatch(scores.dtype(), [&]<typename T>() {
    using A = Acc<T>;
    if (totals) {
      launch<router_totals_kernel<A>>(stream, grid_for(rows), block_size(256), totals.data<double>(), scores.data<A>(), rows,
                                      experts);
    }
    launch<router_load_kernel<A>>(stream, unsigned(partials.dim(0)), block_size(128), partials.data<double>(), scores.data<A>(),
                                  totals ? totals.data<double>() : nullptr, chosen.data<std::int32_t>(),
                                  sequence.data<std::int32_t>(), rows, sequences, experts, top_k);
  });
  add_row_sums(stream, load.view({load.numel()}), partials, false);
}

void balance_loss(Stream& stream, const Tensor& loss, const Tensor& gradient, const Tensor& load, const Tensor& lengths,
                  int top_k, double coefficient, double scale) {
  const std::int64_t sequences = load.dim(0), experts = load.dim(2);
  expect(loss, {1}, Dtype::kFp64, "balance_loss loss");
  expect(gradient, {sequences, experts}, accumulator_of(gradient.dtype()), "balance_loss gradient");
  expect(load, {sequences, 2, experts}, Dtype::kFp64, "balance_loss load");
  expect(lengths, {sequences}, Dtype::kFp64, "balance_loss lengths");
  for (const Tensor* t : {&gradient, &load}) expect_contiguous(*t, "balance_loss");
  const double factor = sequences == 0 ? 0 : coefficient * double(experts) / double(sequences);
  dispatch(gradient.dtype(), [&]<typename T>() {
    using A = Acc<T>;
    launch<balance_loss_kernel<A>>(stream, 1, block_size(256), loss.data<double>(), gradient.data<A>(), load.data<double>(),
                                   lengths.data<double>(), sequences, experts, top_k, factor, scale);
  });
}

void router_z_sum(Stream& stream, const Tensor& z, const Tensor& logits, const Tensor& sequence) {
  const std::int64_t rows = logits.dim(0), experts = logits.dim(1);
  expect(logits, {rows, experts}, accumulator_of(logits.dtype()), "router_z_sum logits");
  expect_contiguous(logits, "router_z_sum logits");
  expect(sequence, {rows}, Dtype::kInt32, "router_z_sum sequence");
  expect(z, {1}, Dtype::kFp64, "router_z_sum z");
  const Tensor of_rows = Tensor::empty({rows}, Dtype::kFp64, MemoryCategory::kWorkspace, stream);
  dispatch(logits.dtype(), [&]<typename T>() {
    using A = Acc<T>;
    launch<router_z_kernel<A>>(stream, unsigned(rows), block_size(kWarpSize), of_rows.data<double>(), logits.data<A>(),
                               sequence.data<std::int32_t>(), experts);
  });
  launch<router_z_sum_kernel>(stream, 1, block_size(256), z.data<double>(), of_rows.data<double>(), rows);
}

}  // namespace ref5d
