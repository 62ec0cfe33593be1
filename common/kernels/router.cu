#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "common/device/launch.h"
#include "common/device/math.h"
#include "common/kernels/cross_entropy_rows.h"
#include "common/kernels/dispatch.h"
#include "common/kernels/router.h"

namespace ref5d {
namespace {

// Rows are short: where a block has one, it is a warp.
constexpr unsigned kRowThreads = block_size(kWarpSize);

// One block per row.
template <typename A>
__global__ void router_softmax_kernel(A* __restrict__ scores, const A* __restrict__ logits, std::int64_t experts) {
  const std::int64_t base = blockIdx.x * experts;
  const A greatest = row_max(logits + base, experts), sum = row_sum_exp(logits + base, experts, greatest);
  for (std::int64_t e = threadIdx.x; e < experts; e += blockDim.x) scores[base + e] = exp_of(logits[base + e] - greatest) / sum;
}

template <typename A>
__global__ void router_sigmoid_kernel(A* __restrict__ scores, const A* __restrict__ logits, std::int64_t n) {
  for (std::int64_t i : grid_range(n)) scores[i] = A(1) / (A(1) + exp_of(-logits[i]));
}

template <typename A>
struct Candidate {
  A value;
  std::int32_t index;
};

// The order of choices: the greater value first, a NaN behind all others, of equal values the lower index first. No two
// candidates are equal in it, so who searches for the first finds the same one however the search is shared.
template <typename A>
__device__ inline bool before(const Candidate<A>& a, const Candidate<A>& b) {
  const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
  if (a_nan || b_nan) return a_nan == b_nan ? a.index < b.index : b_nan;
  return a.value > b.value || (a.value == b.value && a.index < b.index);
}
template <typename A>
__device__ inline Candidate<A> before_all() {
  return {A(INFINITY), -1};
}
template <typename A>
__device__ inline Candidate<A> behind_all() {
  return {A(NAN), INT32_MAX};
}

// The first of 0 .. count - 1 behind `last` of those that may be taken. What has been taken needs no marks that way. The block
// is a warp, all of whose threads must call it.
template <typename A, typename Value, typename May>
__device__ inline Candidate<A> next_behind(const Candidate<A>& last, std::int32_t count, Value value, May may) {
  Candidate<A> best = behind_all<A>();
  for (std::int32_t i = static_cast<std::int32_t>(threadIdx.x); i < count; i += static_cast<std::int32_t>(blockDim.x)) {
    const Candidate<A> candidate{value(i), i};
    if (before(candidate, best) && before(last, candidate) && may(i)) best = candidate;
  }
  for (unsigned offset = kWarpSize / 2; offset > 0; offset /= 2) {
    const Candidate<A> other{warp_shuffle_xor(best.value, offset), warp_shuffle_xor(best.index, offset)};
    if (before(other, best)) best = other;
  }
  return best;
}

// What a group is chosen by: the sum of the two greatest of its `size` values, which begin at `first`.
template <typename A, typename Value>
__device__ inline A group_value(std::int32_t first, std::int32_t size, Value value) {
  Candidate<A> greatest = behind_all<A>(), second = behind_all<A>();
  for (std::int32_t i = first; i < first + size; ++i) {
    const Candidate<A> candidate{value(i), i};
    if (before(candidate, greatest)) {
      second = greatest;
      greatest = candidate;
    } else if (before(candidate, second)) {
      second = candidate;
    }
  }
  return size == 1 ? greatest.value : greatest.value + second.value;
}

// One block per row. Dynamic shared memory: the groups' values, where only some of the groups may be used.
template <typename A>
__global__ void choose_experts_kernel(std::int32_t* __restrict__ chosen, const A* __restrict__ scores,
                                      const A* __restrict__ bias, std::int32_t experts, ChoiceRule rule) {
  const A* s = scores + blockIdx.x * std::int64_t{experts};
  const auto value = [=](std::int32_t e) { return bias == nullptr ? s[e] : s[e] + bias[e]; };
  const std::int32_t size = experts / rule.groups;
  const bool all = rule.top_groups == rule.groups;
  A* of_group = dynamic_shared<A>();
  Candidate<A> last_group = before_all<A>();
  if (!all) {
    for (std::int32_t g = static_cast<std::int32_t>(threadIdx.x); g < rule.groups; g += static_cast<std::int32_t>(blockDim.x))
      of_group[g] = group_value<A>(g * size, size, value);
    __syncthreads();
    for (int i = 0; i < rule.top_groups; ++i)
      last_group = next_behind(
          last_group, rule.groups, [=](std::int32_t g) { return of_group[g]; }, [](std::int32_t) { return true; });
  }
  const auto may = [=](std::int32_t e) { return all || !before(last_group, Candidate<A>{of_group[e / size], e / size}); };
  Candidate<A> last = before_all<A>();
  for (int j = 0; j < rule.top_k; ++j) {
    last = next_behind(last, experts, value, may);
    if (threadIdx.x == 0) chosen[blockIdx.x * std::int64_t{rule.top_k} + j] = last.index;
  }
}

// What scores are divided by so that they sum to 1; where all of them have underflowed, they stay 0.
template <typename A>
__device__ inline A divisor(A sum) {
  return sum == A(0) ? A(1) : sum;
}

template <typename A>
__global__ void routing_weights_kernel(A* __restrict__ weights, const A* __restrict__ scores,
                                       const std::int32_t* __restrict__ chosen, std::int64_t rows, std::int64_t experts,
                                       std::int64_t top_k, bool renormalise, A scale) {
  for (std::int64_t row : grid_range(rows)) {
    const A* s = scores + row * experts;
    const std::int32_t* c = chosen + row * top_k;
    A sum = 0;
    for (std::int64_t j = 0; j < top_k; ++j) sum += s[c[j]];
    sum = divisor(sum);
    // The share first: that of a lone choice is exactly 1.
    for (std::int64_t j = 0; j < top_k; ++j) weights[row * top_k + j] = scale * (renormalise ? s[c[j]] / sum : s[c[j]]);
  }
}

template <typename A>
struct BackwardTensors {
  A* dlogits;
  const A *logits, *scores, *dweights, *balance;  // logits and balance null for none
  const std::int32_t *chosen, *sequence;
};

// The balance loss's part of ds, for its gradient b by the probabilities. All threads of the block must call it.
template <typename A>
__device__ inline void set_balance_part(A* ds, const A* s, const A* b, std::int64_t experts, bool sigmoid) {
  A total = 1, mean = 0;
  if (sigmoid) {
    A sum = 0, dot = 0;
    for (std::int64_t e = threadIdx.x; e < experts; e += blockDim.x) {
      sum += s[e];
      dot += b[e] * s[e];
    }
    total = divisor(block_sum(sum));
    mean = block_sum(dot) / total;
  }
  for (std::int64_t e = threadIdx.x; e < experts; e += blockDim.x) ds[e] = (b[e] - mean) / total;
}

// Every thread sums for itself what the few choices have in common.
template <typename A>
__device__ inline void add_weights_part(A* ds, const A* s, const std::int32_t* chosen, const A* dweights, std::int64_t top_k,
                                        bool renormalise, A scale) {
  A sum = 1, mean = 0;
  if (renormalise) {
    sum = 0;
    for (std::int64_t j = 0; j < top_k; ++j) sum += s[chosen[j]];
    sum = divisor(sum);
    // A lone choice's share is exactly 1, the mean its dweight, and its gradient 0.
    for (std::int64_t j = 0; j < top_k; ++j) mean += dweights[j] * (s[chosen[j]] / sum);
  }
  for (std::int64_t j = 0; j < top_k; ++j)
    if (static_cast<unsigned>(chosen[j]) % blockDim.x == threadIdx.x) ds[chosen[j]] += scale / sum * (dweights[j] - mean);
}

// One block per row. The gradient's place holds ds before; a thread has the same experts throughout, so that needs no barrier.
template <typename A>
__global__ void router_backward_kernel(BackwardTensors<A> t, std::int64_t experts, std::int64_t top_k, bool sigmoid,
                                       bool renormalise, A scale, A z_scale) {
  const std::int64_t row = blockIdx.x;
  A* __restrict__ d = t.dlogits + row * experts;
  const A* s = t.scores + row * experts;
  if (t.balance != nullptr && t.sequence[row] >= 0) {
    set_balance_part(d, s, t.balance + t.sequence[row] * experts, experts, sigmoid);
  } else {
    for (std::int64_t e = threadIdx.x; e < experts; e += blockDim.x) d[e] = 0;
  }
  add_weights_part(d, s, t.chosen + row * top_k, t.dweights + row * top_k, top_k, renormalise, scale);
  A dot = 0;
  if (!sigmoid) {
    for (std::int64_t e = threadIdx.x; e < experts; e += blockDim.x) dot += d[e] * s[e];
    dot = block_sum(dot);
  }
  for (std::int64_t e = threadIdx.x; e < experts; e += blockDim.x) d[e] = s[e] * (sigmoid ? d[e] * (A(1) - s[e]) : d[e] - dot);
  if (t.logits == nullptr || t.sequence[row] < 0) return;
  const A* x = t.logits + row * experts;
  const A greatest = row_max(x, experts), sum = row_sum_exp(x, experts, greatest);
  const A factor = z_scale * A(2) * (log(sum) + greatest) / sum;
  for (std::int64_t e = threadIdx.x; e < experts; e += blockDim.x) d[e] += factor * exp_of(x[e] - greatest);
}

// A matrix in a dtype that accumulators have: neither bf16 nor int32.
void expect_wide(const Tensor& t, std::int64_t rows, std::int64_t columns, Dtype dtype, const char* what) {
  expect(t, {rows, columns}, accumulator_of(dtype), what);
  expect_contiguous(t, what);
}
void expect_chosen(const Tensor& t, std::int64_t rows) {
  expect(t, {rows, t.dim(1)}, Dtype::kInt32, "the chosen experts");
  expect_contiguous(t, "the chosen experts");
}

}  // namespace

void router_scores(Stream& stream, const Tensor& scores, const Tensor& logits, ScoreKind kind) {
  const std::int64_t rows = logits.dim(0), experts = logits.dim(1);
  expect_wide(logits, rows, experts, logits.dtype(), "router_scores logits");
  expect_wide(scores, rows, experts, logits.dtype(), "router_scores scores");
  dispatch(logits.dtype(), [&]<typename T>() {
    using A = Acc<T>;
    if (kind == ScoreKind::kSoftmax) {
      launch<router_softmax_kernel<A>>(stream, unsigned(rows), kRowThreads, scores.data<A>(), logits.data<A>(), experts);
    } else {
      launch<router_sigmoid_kernel<A>>(stream, grid_for(scores.numel()), block_size(256), scores.data<A>(), logits.data<A>(),
                                       scores.numel());
    }
  });
}

void choose_experts(Stream& stream, const Tensor& chosen, const Tensor& scores, const Tensor& bias, const ChoiceRule& rule) {
  const std::int64_t rows = scores.dim(0), experts = scores.dim(1);
  expect_wide(scores, rows, experts, scores.dtype(), "choose_experts scores");
  if (bias) expect(bias, {experts}, scores.dtype(), "choose_experts bias");
  if (rule.groups < 1 || experts % rule.groups != 0 || rule.top_groups < 1 || rule.top_groups > rule.groups || rule.top_k < 1 ||
      rule.top_k > rule.top_groups * (experts / rule.groups)) {
    throw std::logic_error("choose_experts: there are no " + std::to_string(rule.top_k) + " of " + std::to_string(experts) +
                           " experts in " + std::to_string(rule.top_groups) + " of " + std::to_string(rule.groups) +
                           " equal groups");
  }
  expect_chosen(chosen, rows);
  expect(chosen, {rows, rule.top_k}, Dtype::kInt32, "choose_experts chosen");
  dispatch(scores.dtype(), [&]<typename T>() {
    using A = Acc<T>;
    const std::size_t shared_bytes = rule.top_groups == rule.groups ? 0 : static_cast<std::size_t>(rule.groups) * sizeof(A);
    launch<choose_experts_kernel<A>>(stream, unsigned(rows), {kRowThreads, shared_bytes}, chosen.data<std::int32_t>(),
                                     scores.data<A>(), bias ? bias.data<A>() : nullptr, std::int32_t(experts), rule);
  });
}

void routing_weights(Stream& stream, const Tensor& weights, const Tensor& scores, const Tensor& chosen, bool renormalise,
                     double scale) {
  const std::int64_t rows = scores.dim(0), experts = scores.dim(1);
  expect_wide(scores, rows, experts, scores.dtype(), "routing_weights scores");
  expect_chosen(chosen, rows);
  expect_wide(weights, rows, chosen.dim(1), scores.dtype(), "routing_weights weights");
  dispatch(scores.dtype(), [&]<typename T>() {
    using A = Acc<T>;
    launch<routing_weights_kernel<A>>(stream, grid_for(rows), block_size(256), weights.data<A>(), scores.data<A>(),
                                      chosen.data<std::int32_t>(), rows, experts, chosen.dim(1), renormalise, A(scale));
  });
}

void router_backward(Stream& stream, const Tensor& dlogits, const RouterGradient& g) {
  const std::int64_t rows = g.scores.dim(0), experts = g.scores.dim(1);
  const Dtype dtype = g.scores.dtype();
  expect_wide(g.scores, rows, experts, dtype, "router_backward scores");
  expect_wide(dlogits, rows, experts, dtype, "router_backward dlogits");
  expect_chosen(g.chosen, rows);
  expect_wide(g.dweights, rows, g.chosen.dim(1), dtype, "router_backward dweights");
  const bool balance = bool(g.balance_gradient), z = g.z_scale != 0;
  if (balance) expect_wide(g.balance_gradient, g.balance_gradient.dim(0), experts, dtype, "router_backward balance gradient");
  if (z) expect_wide(g.logits, rows, experts, dtype, "router_backward logits");
  if (balance || z) expect(g.sequence, {rows}, Dtype::kInt32, "router_backward sequence");
  dispatch(dtype, [&]<typename T>() {
    using A = Acc<T>;
    const BackwardTensors<A> tensors{dlogits.data<A>(),
                                     z ? g.logits.data<A>() : nullptr,
                                     g.scores.data<A>(),
                                     g.dweights.data<A>(),
                                     balance ? g.balance_gradient.data<A>() : nullptr,
                                     g.chosen.data<std::int32_t>(),
                                     balance || z ? g.sequence.data<std::int32_t>() : nullptr};
    launch<router_backward_kernel<A>>(stream, unsigned(rows), kRowThreads, tensors, experts, g.chosen.dim(1),
                                      g.kind == ScoreKind::kSigmoid, g.renormalise, A(g.scale), A(g.z_scale));
  });
}

}  // namespace ref5d
