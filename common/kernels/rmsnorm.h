// Root-mean-square norm over the last dim (Zhang and Sennrich 2019): y = x / sqrt(mean(x^2) + eps) * w.
#pragma once

#include "common/tensor/tensor.h"

namespace ref5d {

// x, y [R, H]; w [H]; rstd [R] in the accumulator's dtype, kept for backward: 1 / sqrt(mean(x^2) + eps).
void rmsnorm_forward(Stream& stream, const Tensor& y, const Tensor& rstd, const Tensor& x, const Tensor& w, double eps);

// dx [R, H] = the gradient of x, dw [H] = the gradient of w; each is overwritten, or added to if its flag says so. dw is of the
// model's dtype or its accumulator's. With xhat = x * rstd and g = dy * w:
//   dw = sum over rows of dy * xhat;   dx = rstd * (g - xhat * mean(g * xhat)).
void rmsnorm_backward(Stream& stream, const Tensor& dx, const Tensor& dw, const Tensor& dy, const Tensor& x, const Tensor& rstd,
                      const Tensor& w, bool accumulate_dx, bool accumulate_dw);

// The same without the sum over rows: returns its partial sums [P, H], from which add_row_sums (row_sums.h) makes dw, at once
// or later.
[[nodiscard]] Tensor rmsnorm_backward_input(Stream& stream, const Tensor& dx, const Tensor& dy, const Tensor& x,
                                            const Tensor& rstd, const Tensor& w, bool accumulate_dx);

// The forward step by step, as an unfused framework does it: squares [R, H] and normalised [R, H] go through memory. For
// comparison only.
void rmsnorm_forward_unfused(Stream& stream, const Tensor& y, const Tensor& rstd, const Tensor& squares,
                             const Tensor& normalised, const Tensor& x, const Tensor& w, double eps);

}  // namespace ref5d
