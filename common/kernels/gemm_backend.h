// What gemm.cpp needs from a mode: cpu/gemm.cpp, or cuda/gemm_blas.cpp (cuBLAS).
#pragma once

#include "common/kernels/gemm.h"

namespace ref5d::gemm_backend {

// GemmKind::kBlas: C = alpha * op(A) * op(B) + beta * C, enqueued; shapes and dtypes fit, sizes are not zero.
void multiply(Stream& stream, Transpose ta, Transpose tb, double alpha, const Tensor& a, const Tensor& b, double beta,
              const Tensor& c);

// GemmKind::kTensorCore. Throws InputError where there is none.
void multiply_on_tensor_cores(Stream& stream, Transpose ta, Transpose tb, double alpha, const Tensor& a, const Tensor& b,
                              double beta, const Tensor& c);

// to [R', C'] = the upper left corner of from [R, C], converted; zeros where `from` has ended. Any leading dims, any two
// floating-point dtypes.
void copy_corner(Stream& stream, const Tensor& to, const Tensor& from);

}  // namespace ref5d::gemm_backend
