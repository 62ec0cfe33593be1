// SwiGLU (Shazeer 2020): y = silu(gate) * up, silu(g) = g / (1 + exp(-g)). All tensors [R, F].
#pragma once

#include "common/tensor/tensor.h"

namespace ref5d {

void swiglu_forward(Stream& stream, const Tensor& y, const Tensor& gate, const Tensor& up);

// With s = sigmoid(gate):  dup = dy * gate * s;  dgate = dy * up * s * (1 + gate * (1 - s)).
// dgate may be gate's storage and dup up's.
void swiglu_backward(Stream& stream, const Tensor& dgate, const Tensor& dup, const Tensor& dy, const Tensor& gate,
                     const Tensor& up);

// The same step by step, as an unfused framework does it: silu into `scratch`, then the product. For comparison only.
void swiglu_forward_unfused(Stream& stream, const Tensor& y, const Tensor& scratch, const Tensor& gate, const Tensor& up);

}  // namespace ref5d
