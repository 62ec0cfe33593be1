// GELU, tanh form (Hendrycks and Gimpel 2016): y = x/2 * (1 + tanh(u)), u = sqrt(2/pi) * (x + 0.044715 x^3).
// Computed as x * sigmoid(2u), which is the same and needs one exp. All tensors [R, F].
#pragma once

#include "common/tensor/tensor.h"

namespace ref5d {

void gelu_forward(Stream& stream, const Tensor& y, const Tensor& x);

// With s = sigmoid(2u):  dx = dy * (s + x * s * (1 - s) * 2 du/dx),  du/dx = sqrt(2/pi) * (1 + 3 * 0.044715 x^2).
// dx may be dy's storage.
void gelu_backward(Stream& stream, const Tensor& dx, const Tensor& dy, const Tensor& x);

}  // namespace ref5d
