// What gemm.cpp needs from a mode's library (cpu/gemm_blas.cpp: OpenBLAS, cuda/gemm_blas.cpp: cuBLAS).
#pragma once

#include <span>

#include "common/kernels/gemm.h"

namespace ref5d::gemm_backend {

// Whether the library multiplies bf16; if not, gemm() widens to fp32.
[[nodiscard]] bool has_bf16();

// How M rows are to be computed: the first `direct` as they lie, the others in a block padded with zeros to `padded` rows.
struct RowSplit {
  std::int64_t direct, padded;
};
[[nodiscard]] RowSplit split_rows(std::int64_t m);

// A stretch of rows of op(A) and C.
struct Part {
  Tensor a, c;
};
// Each part's C = alpha * op(A) * op(B) + beta * C, enqueued; sizes are not zero.
void multiply(Stream& stream, Transpose ta, Transpose tb, double alpha, std::span<const Part> parts, const Tensor& b,
              double beta);

// GemmKind::kTensorCore. Throws InputError where there is none.
void multiply_on_tensor_cores(Stream& stream, Transpose ta, Transpose tb, double alpha, const Tensor& a, const Tensor& b,
                              double beta, const Tensor& c);

// to [R', C'] = the upper left corner of from [R, C], converted; zeros where `from` has ended. Any leading dims, any two
// floating-point dtypes.
void copy_corner(Stream& stream, const Tensor& to, const Tensor& from);

}  // namespace ref5d::gemm_backend
