// Layer norm over the last dim (Ba et al. 2016): y = (x - mean(x)) / sqrt(var(x) + eps) * w + b.
#pragma once

#include "common/tensor/tensor.h"

namespace ref5d {

// x, y [R, H]; w, b [H]; mean, rstd [R] in the accumulator's dtype, kept for backward.
void layernorm_forward(Stream& stream, const Tensor& y, const Tensor& mean, const Tensor& rstd, const Tensor& x,
                       const Tensor& w, const Tensor& b, double eps);

// dx [R, H], dw, db [H]; each is overwritten, or added to if its flag says so; dw and db are of the model's dtype or its
// accumulator's. With xhat = (x - mean) * rstd and g = dy * w:
//   dw = sum dy * xhat;  db = sum dy;  dx = rstd * (g - mean(g) - xhat * mean(g * xhat)).
void layernorm_backward(Stream& stream, const Tensor& dx, const Tensor& dw, const Tensor& db, const Tensor& dy, const Tensor& x,
                        const Tensor& mean, const Tensor& rstd, const Tensor& w, bool accumulate_dx, bool accumulate_dw,
                        bool accumulate_db);

// The same without the sums over rows: returns their partial sums [P, H], from which add_row_sums (row_sums.h) makes dw and db,
// at once or later.
struct LayernormPartials {
  Tensor dw, db;
};
[[nodiscard]] LayernormPartials layernorm_backward_input(Stream& stream, const Tensor& dx, const Tensor& dy, const Tensor& x,
                                                         const Tensor& mean, const Tensor& rstd, const Tensor& w,
                                                         bool accumulate_dx);

}  // namespace ref5d
