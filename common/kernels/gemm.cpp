#include "common/kernels/gemm.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

#include "common/device/error.h"
#include "common/kernels/gemm_backend.h"

namespace ref5d {
namespace {

std::string describe(const Tensor& t, Transpose transpose) {
  return to_string(t.shape()) + (transpose == Transpose::kYes ? "^T " : " ") + dtype_name(t.dtype());
}

// cuBLAS counts in int; the limit is the same everywhere.
void expect_int(const Tensor& t) {
  constexpr std::int64_t kMax = std::numeric_limits<int>::max();
  if (std::max({t.dim(0), t.dim(1), t.ld()}) > kMax)
    throw RunError("a matrix product with a dim of more than 2^31 - 1: " + to_string(t.shape()) +
                   "; use a smaller micro-batch");
}

}  // namespace

GemmSize gemm_size(Transpose ta, Transpose tb, const Tensor& a, const Tensor& b, const Tensor& c) {
  const auto fail = [&](const char* why) {
    throw std::logic_error(std::string("gemm of ") + describe(a, ta) + " and " + describe(b, tb) + " into " +
                           describe(c, Transpose::kNo) + ": " + why);
  };
  if (a.rank() != 2 || b.rank() != 2 || c.rank() != 2) fail("the operands must be matrices");
  const bool left = ta == Transpose::kYes, right = tb == Transpose::kYes;
  const GemmSize s{a.dim(left ? 1 : 0), b.dim(right ? 0 : 1), a.dim(left ? 0 : 1)};
  if (b.dim(right ? 1 : 0) != s.k) fail("the inner dims differ");
  if (c.dim(0) != s.m || c.dim(1) != s.n) fail("the result has another shape");
  if (a.dtype() != b.dtype() || a.dtype() == Dtype::kInt32) fail("the inputs must have one floating-point dtype");
  if (c.dtype() != a.dtype() && c.dtype() != accumulator_of(a.dtype()))
    fail("the result must have the inputs' dtype or their accumulator's");
  return s;
}

void gemm(Stream& stream, GemmKind kind, Transpose ta, Transpose tb, double alpha, const Tensor& a, const Tensor& b,
          double beta, const Tensor& c) {
  const auto [m, n, k] = gemm_size(ta, tb, a, b, c);
  if (m == 0 || n == 0) return;
  // Without a sum to form, or where the library would have to be asked about matrices without elements.
  if (kind == GemmKind::kHand || k == 0) return gemm_hand(stream, ta, tb, alpha, a, b, beta, c);
  if (kind == GemmKind::kTensorCore) return gemm_backend::multiply_on_tensor_cores(stream, ta, tb, alpha, a, b, beta, c);
  for (const Tensor* t : {&a, &b, &c}) expect_int(*t);
  gemm_backend::multiply(stream, ta, tb, alpha, a, b, beta, c);
}

void gemm_grouped(Stream& stream, GemmKind kind, Transpose ta, Transpose tb, double alpha,
                  const std::vector<GemmOperands>& products) {
  if (kind == GemmKind::kHand) return gemm_grouped_hand(stream, ta, tb, alpha, products);
  for (const GemmOperands& p : products) gemm(stream, kind, ta, tb, alpha, p.a, p.b, p.beta, p.c);
}

}  // namespace ref5d
