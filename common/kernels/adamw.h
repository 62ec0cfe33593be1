// AdamW (Loshchilov and Hutter 2019) with bias correction and decoupled decay.
#pragma once

#include "common/tensor/tensor.h"

namespace ref5d {

struct AdamwOptions {
  double lr = 3e-4, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1;
  // Where epsilon stands. Only kOutside is right; the others exist to show what they break (pitfall P16).
  enum class Epsilon { kOutside, kInsideRoot, kBeforeCorrection } epsilon = Epsilon::kOutside;
};

// One step (1-based) on n elements:
//   g = grad * grad_scale;  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
//   w -= lr * ( (m / (1 - b1^step)) / (sqrt(v / (1 - b2^step)) + eps) + weight_decay * w )
// weight in the model's dtype. master: fp32 for bf16 weights (the update is made there and weight is its rounding), undefined
// otherwise. grad: the model's dtype or its accumulator's. m, v: the accumulator's. grad_scale: fp64 [1] on the device.
// weight_decay of `options` applies; pass 0 for parameters without decay. All tensors contiguous, of the same number of
// elements.
void adamw(Stream& stream, const Tensor& weight, const Tensor& master, const Tensor& grad, const Tensor& m, const Tensor& v,
           const Tensor& grad_scale, const AdamwOptions& options, std::int64_t step);

}  // namespace ref5d
