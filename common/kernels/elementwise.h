// Sums of two tensors, biases, casts and scaled adds.
#pragma once

#include "common/tensor/tensor.h"

namespace ref5d {

// y = a + b, same shape and dtype; y may be a's or b's storage. The residual connection; its backward adds gradients likewise.
void add(Stream& stream, const Tensor& y, const Tensor& a, const Tensor& b);

// to [R, C] += from [R, C] of the same dtype, each with any leading dim. They share no storage.
void add_matrix(Stream& stream, const Tensor& to, const Tensor& from);

// y [R, C] += bias [C]; y may have a larger leading dim.
void bias_forward(Stream& stream, const Tensor& y, const Tensor& bias);
// dbias [C] = the sum over rows of dy [R, C] (which may have a larger leading dim), or += if accumulate. dbias is of dy's dtype
// or its accumulator's. Two stages, no atomics (row_sums.h).
void bias_backward(Stream& stream, const Tensor& dbias, const Tensor& dy, bool accumulate);

// to = from, rounded to nearest even when `to` is narrower. Any two floating-point dtypes, same number of elements.
void convert(Stream& stream, const Tensor& to, const Tensor& from);

// y += alpha * x. y and x may differ in dtype (fp32 y, bf16 x); the sum is formed in the wider accumulator and rounded once.
void scaled_add(Stream& stream, const Tensor& y, const Tensor& x, double alpha);

// y = alpha * y. alpha = 0 gives zeros whatever y held.
void scale(Stream& stream, const Tensor& y, double alpha);

// A matrix copy between leading dims: to [R, C] = from [R, C].
void copy_matrix(Stream& stream, const Tensor& to, const Tensor& from);

}  // namespace ref5d
