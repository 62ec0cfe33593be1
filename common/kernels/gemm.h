// Matrix products: C = alpha * op(A) * op(B) + beta * C, all row-major, any leading dims.
#pragma once

#include <vector>

#include "common/tensor/tensor.h"

namespace ref5d {

enum class Transpose { kNo, kYes };

// kBlas: cuBLAS on the GPU, the packed kernel of cpu/gemm.cpp on the CPU. kHand: the tiled kernel of gemm_hand.cu, the same
// in every mode.
// kTensorCore: the wmma kernel, bf16 on a GPU of sm_80 or later; elsewhere InputError.
enum class GemmKind { kBlas, kHand, kTensorCore };

// C [M, N], op(A) [M, K], op(B) [K, N]. A and B have one dtype; C has it too or its accumulator's (bf16 inputs, fp32 C).
// beta = 0 overwrites C, whatever it held. bf16 sums in fp32 and rounds once. K = 0 gives beta * C; M = 0 or N = 0 nothing.
// C overlaps neither A nor B. Throws std::logic_error on shapes or dtypes that do not fit.
//
// On the CPU, and with kHand everywhere, a row's bits depend neither on how many rows there are nor on the number of threads.
// cuBLAS makes no such promise; only a single row is computed as two there.
void gemm(Stream& stream, GemmKind kind, Transpose ta, Transpose tb, double alpha, const Tensor& a, const Tensor& b,
          double beta, const Tensor& c);

// C_i = alpha * op(A_i) * op(B_i) + beta_i * C_i of several matrices, of any sizes, that share nothing: what experts multiply
// their rows with. The naive way is one gemm() after the other, which is what libraries are given here; a product of few rows
// keeps few of a GPU's processors busy. kHand takes the tiles of up to 32 in one
// launch, with the bits of gemm_hand().
struct GemmOperands {
  Tensor a, b, c;
  double beta = 0;
};
void gemm_grouped(Stream& stream, GemmKind kind, Transpose ta, Transpose tb, double alpha,
                  const std::vector<GemmOperands>& products);

// 2 * M * N * K.
[[nodiscard]] inline std::int64_t gemm_flops(std::int64_t m, std::int64_t n, std::int64_t k) { return 2 * m * n * k; }

// The hand-written tiled kernels: lesson material. Same meaning as gemm() and gemm_grouped().
void gemm_hand(Stream& stream, Transpose ta, Transpose tb, double alpha, const Tensor& a, const Tensor& b, double beta,
               const Tensor& c);
void gemm_grouped_hand(Stream& stream, Transpose ta, Transpose tb, double alpha, const std::vector<GemmOperands>& products);

struct GemmSize {
  std::int64_t m, n, k;
};
// Checks the operands of gemm() and returns their sizes.
[[nodiscard]] GemmSize gemm_size(Transpose ta, Transpose tb, const Tensor& a, const Tensor& b, const Tensor& c);

}  // namespace ref5d
