#include <cmath>

#include "common/device/launch.h"
#include "common/kernels/adamw.h"
#include "common/kernels/dispatch.h"

namespace ref5d {
namespace {

// What one step multiplies and adds, the same for every element:
//   w -= lr * (m * m_factor / (sqrt(v * v_factor + eps_inside) + eps_outside) + weight_decay * w)
// The three places of epsilon differ in these numbers only.
template <typename A>
struct Step {
  A beta1, one_minus_beta1, beta2, one_minus_beta2, lr, weight_decay, m_factor, v_factor, eps_inside, eps_outside;
};

template <typename A>
Step<A> make_step(const AdamwOptions& o, std::int64_t step) {
  // 1 - beta^step by expm1: for beta near 1 the subtraction would lose digits.
  const double correction1 = -std::expm1(double(step) * std::log(o.beta1));
  const double correction2 = -std::expm1(double(step) * std::log(o.beta2));
  double m_factor = 1 / correction1, v_factor = 1 / correction2, inside = 0, outside = o.eps;
  switch (o.epsilon) {
    case AdamwOptions::Epsilon::kOutside: break;
    case AdamwOptions::Epsilon::kInsideRoot:
      inside = o.eps;
      outside = 0;
      break;
    case AdamwOptions::Epsilon::kBeforeCorrection:
      m_factor = std::sqrt(correction2) / correction1;
      v_factor = 1;
      break;
  }
  return {A(o.beta1),        A(1 - o.beta1), A(o.beta2),  A(1 - o.beta2), A(o.lr),
          A(o.weight_decay), A(m_factor),    A(v_factor), A(inside),      A(outside)};
}

// W: where the update is made; T: the rounded copy, absent (null) where the weight itself is updated.
template <typename A, typename T, typename G>
__global__ void adamw_kernel(A* __restrict__ weight, T* __restrict__ copy, const G* __restrict__ grad, A* __restrict__ m,
                             A* __restrict__ v, const double* __restrict__ grad_scale, std::int64_t n, Step<A> step) {
  const A scale = A(grad_scale[0]);
  for (std::int64_t i : grid_range(n)) {
    const A g = A(grad[i]) * scale;
    const A mi = step.beta1 * m[i] + step.one_minus_beta1 * g;
    const A vi = step.beta2 * v[i] + step.one_minus_beta2 * g * g;
    const A w = weight[i];
    const A update = mi * step.m_factor / (std::sqrt(vi * step.v_factor + step.eps_inside) + step.eps_outside);
    const A next = w - step.lr * (update + step.weight_decay * w);
    m[i] = mi;
    v[i] = vi;
    weight[i] = next;
    if constexpr (!std::is_same_v<A, T>) copy[i] = T(next);
  }
}

}  // namespace

void adamw(Stream& stream, const Tensor& weight, const Tensor& master, const Tensor& grad, const Tensor& m, const Tensor& v,
           const Tensor& grad_scale, const AdamwOptions& options, std::int64_t step) {
  const std::int64_t n = weight.numel();
  const Dtype dtype = weight.dtype(), accumulator = accumulator_of(dtype);
  const bool has_master = accumulator != dtype;
  if (static_cast<bool>(master) != has_master) {
    throw std::logic_error(std::string("adamw ") + (has_master ? "needs" : "takes no") + " master weights for " +
                           dtype_name(dtype) + " weights");
  }
  if (step < 1) throw std::logic_error("adamw steps count from 1, not from " + std::to_string(step));
  auto expect_flat = [n](const Tensor& t, Dtype d, const char* what) {
    expect(t, t.numel() == n ? t.shape() : Shape{n}, d, what);
    expect_contiguous(t, what);
  };
  expect_flat(weight, dtype, "adamw weight");
  if (has_master) expect_flat(master, accumulator, "adamw master");
  expect_flat(grad, grad.dtype() == dtype ? dtype : accumulator, "adamw grad");
  expect_flat(m, accumulator, "adamw m");
  expect_flat(v, accumulator, "adamw v");
  expect(grad_scale, {1}, Dtype::kFp64, "adamw grad_scale");
  dispatch_with_output(dtype, grad.dtype(), [&]<typename T, typename G>() {
    using A = Acc<T>;
    launch<adamw_kernel<A, T, G>>(stream, grid_for(n), block_size(256), (has_master ? master : weight).template data<A>(),
                                  has_master ? weight.data<T>() : static_cast<T*>(nullptr), grad.data<G>(), m.data<A>(),
                                  v.data<A>(), grad_scale.data<double>(), n, make_step<A>(options, step));
  });
}

}  // namespace ref5d
