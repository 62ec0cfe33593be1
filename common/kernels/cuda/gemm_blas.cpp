// The matrix product by cuBLAS.
//
// cuBLAS is column-major: a row-major matrix is its transpose there, so C^T = op(B)^T * op(A)^T is asked for, with the
// operands exchanged. Sums are in fp32 for fp32 and bf16 (no TF32, no reduction in bf16), in fp64 for fp64. One handle per
// process and one workspace per stream: products of different streams never share scratch memory, which is what cuBLAS asks
// for in return for bitwise repeatable results.
#include <cublas_v2.h>

#include <map>
#include <string>

#include "common/device/cuda/cuda_stream.h"
#include "common/device/error.h"
#include "common/device/memory.h"
#include "common/kernels/gemm_backend.h"

namespace ref5d::gemm_backend {
namespace {

// NVIDIA's advice for Hopper; more than older GPUs need. As cuBLAS's own workspace would be, it is not in the memory ledger.
constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;

void check(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw RunError(std::string("cuBLAS error in ") + what + ": " + cublasGetStatusName(status) + " (" +
                 cublasGetStatusString(status) + ")");
}

cublasHandle_t handle_for(Stream& stream) {
  static const cublasHandle_t kHandle = [] {
    cublasHandle_t handle = nullptr;
    check(cublasCreate(&handle), "cublasCreate");
    const int mode = CUBLAS_DEFAULT_MATH | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION;
    check(cublasSetMathMode(handle, static_cast<cublasMath_t>(mode)), "cublasSetMathMode");
    return handle;
  }();
  // By the stream's address: a stream made later at the same place takes the workspace over, after the first one's work.
  static auto* const kWorkspaces = new std::map<const Stream*, std::byte*>;
  auto [at, missing] = kWorkspaces->try_emplace(&stream, nullptr);
  if (at->second == nullptr) at->second = backend::allocate(kWorkspaceBytes, stream);
  check(cublasSetStream(kHandle, cuda::native(stream)), "cublasSetStream");
  check(cublasSetWorkspace(kHandle, at->second, kWorkspaceBytes), "cublasSetWorkspace");  // cublasSetStream took it away
  return kHandle;
}

cudaDataType_t type_of(Dtype dtype) {
  return dtype == Dtype::kFp64 ? CUDA_R_64F : dtype == Dtype::kFp32 ? CUDA_R_32F : CUDA_R_16BF;
}
cublasOperation_t operation(Transpose t) { return t == Transpose::kYes ? CUBLAS_OP_T : CUBLAS_OP_N; }
int leading_dim(const Tensor& t) { return static_cast<int>(t.ld() > t.dim(1) ? t.ld() : t.dim(1)); }

void call(Stream& stream, Transpose ta, Transpose tb, double alpha, const Tensor& a, const Tensor& b, double beta,
          const Tensor& c) {
  const auto [m, n, k] = gemm_size(ta, tb, a, b, c);
  const bool fp64 = b.dtype() == Dtype::kFp64;
  const float alpha32 = static_cast<float>(alpha), beta32 = static_cast<float>(beta);
  const void* const a_scale = fp64 ? static_cast<const void*>(&alpha) : &alpha32;
  const void* const c_scale = fp64 ? static_cast<const void*>(&beta) : &beta32;
  const cublasComputeType_t compute = fp64 ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F;
  static const std::string kName = "gemm";
  const cublasHandle_t handle = handle_for(stream);
  const cuda::ProfileScope profile(stream, kName);
  check(cublasGemmEx(handle, operation(tb), operation(ta), static_cast<int>(n), static_cast<int>(m), static_cast<int>(k),
                     a_scale, b.raw(), type_of(b.dtype()), leading_dim(b), a.raw(), type_of(a.dtype()), leading_dim(a), c_scale,
                     c.raw(), type_of(c.dtype()), leading_dim(c), compute, CUBLAS_GEMM_DEFAULT),
        "cublasGemmEx");
}

}  // namespace

void multiply(Stream& stream, Transpose ta, Transpose tb, double alpha, const Tensor& a, const Tensor& b, double beta,
              const Tensor& c) {
  if (c.dim(0) > 1) return call(stream, ta, tb, alpha, a, b, beta, c);
  // cuBLAS has a path of its own for a single row (a matrix-vector product) with another order of summation: a row of zeros
  // goes with it. The workspace may be dropped when the work is enqueued: it is freed in the stream's order.
  const auto workspace = [&](std::int64_t rows, std::int64_t columns, Dtype dtype) {
    return Tensor::empty({rows, columns}, dtype, MemoryCategory::kWorkspace, stream);
  };
  const bool left = ta == Transpose::kYes;
  const Tensor two_a = workspace(left ? a.dim(0) : 2, left ? 2 : a.dim(1), a.dtype()),
               two_c = workspace(2, c.dim(1), c.dtype());
  copy_corner(stream, two_a, a);
  if (beta != 0) copy_corner(stream, two_c, c);
  call(stream, ta, tb, alpha, two_a, b, beta, two_c);
  copy_corner(stream, c, two_c);
}

}  // namespace ref5d::gemm_backend
