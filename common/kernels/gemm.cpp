#include "common/kernels/gemm.h"

#include <algorithm>
#include <array>
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

// The libraries count in int.
void expect_int(const Tensor& t) {
  constexpr std::int64_t kMax = std::numeric_limits<int>::max();
  if (std::max({t.dim(0), t.dim(1), t.ld()}) > kMax)
    throw RunError("a matrix product with a dim of more than 2^31 - 1: " + to_string(t.shape()) +
                   "; use a smaller micro-batch");
}

Tensor workspace(std::int64_t rows, std::int64_t columns, Dtype dtype, Stream& stream) {
  return Tensor::empty({rows, columns}, dtype, MemoryCategory::kWorkspace, stream);
}

// Rows of op(A).
Tensor rows_of(const Tensor& a, Transpose ta, std::int64_t begin, std::int64_t end) {
  return ta == Transpose::kYes ? a.columns(begin, end) : a.rows(begin, end);
}

// The product by the library, with rows padded as it wants them. Workspace may be dropped as soon as the work is enqueued:
// it is freed in the stream's order.
void multiply_padded(Stream& stream, Transpose ta, Transpose tb, double alpha, const Tensor& a, const Tensor& b, double beta,
                     const Tensor& c) {
  const std::int64_t m = c.dim(0), n = c.dim(1), k = b.dim(tb == Transpose::kYes ? 1 : 0);
  const auto [direct, padded] = gemm_backend::split_rows(m);
  std::array<gemm_backend::Part, 2> parts;
  std::size_t count = 0;
  if (direct > 0) parts[count++] = {rows_of(a, ta, 0, direct), c.rows(0, direct)};
  if (padded > 0) {
    gemm_backend::Part rest;
    rest.a = ta == Transpose::kYes ? workspace(k, padded, a.dtype(), stream) : workspace(padded, k, a.dtype(), stream);
    rest.c = workspace(padded, n, c.dtype(), stream);
    gemm_backend::copy_corner(stream, rest.a, rows_of(a, ta, direct, m));
    if (beta != 0) gemm_backend::copy_corner(stream, rest.c, c.rows(direct, m));
    parts[count++] = rest;
  }
  gemm_backend::multiply(stream, ta, tb, alpha, {parts.data(), count}, b, beta);
  if (padded > 0) gemm_backend::copy_corner(stream, c.rows(direct, m), parts[count - 1].c);
}

// bf16 for a library without it: widened exactly, summed in fp32, rounded once.
void multiply_widened(Stream& stream, Transpose ta, Transpose tb, double alpha, const Tensor& a, const Tensor& b, double beta,
                      const Tensor& c) {
  const Tensor wide_a = workspace(a.dim(0), a.dim(1), Dtype::kFp32, stream);
  const Tensor wide_b = workspace(b.dim(0), b.dim(1), Dtype::kFp32, stream);
  gemm_backend::copy_corner(stream, wide_a, a);
  gemm_backend::copy_corner(stream, wide_b, b);
  if (c.dtype() == Dtype::kFp32) return multiply_padded(stream, ta, tb, alpha, wide_a, wide_b, beta, c);
  const Tensor wide_c = workspace(c.dim(0), c.dim(1), Dtype::kFp32, stream);
  if (beta != 0) gemm_backend::copy_corner(stream, wide_c, c);
  multiply_padded(stream, ta, tb, alpha, wide_a, wide_b, beta, wide_c);
  gemm_backend::copy_corner(stream, c, wide_c);
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
  const bool widen = a.dtype() == Dtype::kBf16 && !gemm_backend::has_bf16();
  (widen ? multiply_widened : multiply_padded)(stream, ta, tb, alpha, a, b, beta, c);
}

}  // namespace ref5d
