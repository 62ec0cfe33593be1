// A matrix product on tensor cores through the warp matrix functions (wmma) of CUDA C++, sm_80 and later: bf16 inputs, fp32
// sums. What cuBLAS does, in its plainest form.
//
// A block of 8 warps computes a 128 x 128 tile of C, 4 warps down and 2 across; a warp computes 32 x 64 of it as 2 x 4
// fragments of 16 x 16. Tiles of A and B lie in shared memory as they lie in global memory; a transposed operand is a
// fragment loaded column-major, so nothing is transposed. Beyond the matrix stand zeros, which add nothing.
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <mma.h>

#include <type_traits>

#include "common/device/cuda/cuda_stream.h"
#include "common/device/error.h"
#include "common/device/launch.h"
#include "common/kernels/gemm_backend.h"

namespace ref5d::gemm_backend {
namespace {

namespace wmma = nvcuda::wmma;

constexpr int kTile = 128, kDepth = 32, kFragment = 16;
constexpr int kWarpsDown = 4, kWarpsAcross = 2, kThreads = 32 * kWarpsDown * kWarpsAcross;
constexpr int kDown = kTile / kWarpsDown / kFragment, kAcross = kTile / kWarpsAcross / kFragment;  // a warp's fragments
constexpr int kPad = 8;  // elements: rows in different banks. Fragments begin at multiples of 16 rows and columns, 32 bytes

// kOuter x kInner elements, inner ones neighbours in memory; zeros where the matrix has ended.
template <int kOuter, int kInner>
__device__ void load_tile(__nv_bfloat16* tile, const __nv_bfloat16* from, std::int64_t ld, std::int64_t outer_left,
                          std::int64_t inner_left) {
  for (int i = static_cast<int>(threadIdx.x); i < kOuter * kInner; i += kThreads) {
    const int outer = i / kInner, inner = i % kInner;
    const bool inside = outer < outer_left && inner < inner_left;
    tile[outer * (kInner + kPad) + inner] = inside ? from[outer * ld + inner] : __float2bfloat16(0.0f);
  }
}

// alpha * sums + beta * C for one fragment, by way of the warp's own 16 x 16 floats in shared memory: which element of a
// fragment a thread holds is the hardware's business.
template <typename Fragment, typename O>
__device__ void store_fragment(const Fragment& sums, float* staging, O* c, std::int64_t ldc, std::int64_t rows_left,
                               std::int64_t columns_left, float alpha, float beta) {
  wmma::store_matrix_sync(staging, sums, kFragment, wmma::mem_row_major);
  __syncwarp();
  for (int i = static_cast<int>(threadIdx.x) % 32; i < kFragment * kFragment; i += 32) {
    const int row = i / kFragment, column = i % kFragment;
    if (row >= rows_left || column >= columns_left) continue;
    O& out = c[row * ldc + column];
    const float product = alpha * staging[i];
    out = O(beta == 0.0f ? product : product + beta * float(out));  // beta = 0 must not read: it may be NaN
  }
  __syncwarp();  // before the next fragment takes the staging area
}

template <bool kTransA, bool kTransB, typename O>
__global__ void __launch_bounds__(kThreads)
    gemm_tensor_core_kernel(O* __restrict__ c, const __nv_bfloat16* __restrict__ a, const __nv_bfloat16* __restrict__ b,
                            std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t lda, std::int64_t ldb,
                            std::int64_t ldc, float alpha, float beta) {
#if __CUDA_ARCH__ >= 800
  using LayoutA = std::conditional_t<kTransA, wmma::col_major, wmma::row_major>;
  using LayoutB = std::conditional_t<kTransB, wmma::col_major, wmma::row_major>;
  constexpr int kStrideA = (kTransA ? kTile : kDepth) + kPad, kStrideB = (kTransB ? kDepth : kTile) + kPad;
  __shared__ __align__(32) __nv_bfloat16 a_tile[(kTransA ? kDepth : kTile) * kStrideA];
  __shared__ __align__(32) __nv_bfloat16 b_tile[(kTransB ? kTile : kDepth) * kStrideB];
  __shared__ __align__(32) float staging[kThreads / 32][kFragment * kFragment];

  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warp_row = warp / kWarpsAcross * kDown * kFragment, warp_column = warp % kWarpsAcross * kAcross * kFragment;
  const std::int64_t row0 = std::int64_t{blockIdx.x} * kTile, column0 = std::int64_t{blockIdx.y} * kTile;

  wmma::fragment<wmma::accumulator, kFragment, kFragment, kFragment, float> sums[kDown][kAcross];
  for (auto& row : sums) {
    for (auto& fragment : row) wmma::fill_fragment(fragment, 0.0f);
  }
  for (std::int64_t k0 = 0; k0 < k; k0 += kDepth) {
    if constexpr (kTransA) {
      load_tile<kDepth, kTile>(a_tile, a + k0 * lda + row0, lda, k - k0, m - row0);
    } else {
      load_tile<kTile, kDepth>(a_tile, a + row0 * lda + k0, lda, m - row0, k - k0);
    }
    if constexpr (kTransB) {
      load_tile<kTile, kDepth>(b_tile, b + column0 * ldb + k0, ldb, n - column0, k - k0);
    } else {
      load_tile<kDepth, kTile>(b_tile, b + k0 * ldb + column0, ldb, k - k0, n - column0);
    }
    __syncthreads();
    for (int d = 0; d < kDepth; d += kFragment) {
      wmma::fragment<wmma::matrix_a, kFragment, kFragment, kFragment, __nv_bfloat16, LayoutA> left[kDown];
      wmma::fragment<wmma::matrix_b, kFragment, kFragment, kFragment, __nv_bfloat16, LayoutB> right;
      REF5D_UNROLL
      for (int i = 0; i < kDown; ++i) {
        const int row = warp_row + i * kFragment;
        wmma::load_matrix_sync(left[i], a_tile + (kTransA ? d * kStrideA + row : row * kStrideA + d), kStrideA);
      }
      REF5D_UNROLL
      for (int j = 0; j < kAcross; ++j) {
        const int column = warp_column + j * kFragment;
        wmma::load_matrix_sync(right, b_tile + (kTransB ? column * kStrideB + d : d * kStrideB + column), kStrideB);
        REF5D_UNROLL
        for (int i = 0; i < kDown; ++i) wmma::mma_sync(sums[i][j], left[i], right, sums[i][j]);
      }
    }
    __syncthreads();  // before the next step overwrites the tiles
  }
  REF5D_UNROLL
  for (int i = 0; i < kDown; ++i) {
    REF5D_UNROLL
    for (int j = 0; j < kAcross; ++j) {
      const std::int64_t row = row0 + warp_row + i * kFragment, column = column0 + warp_column + j * kFragment;
      if (row >= m || column >= n) continue;
      store_fragment(sums[i][j], staging[warp], c + row * ldc + column, ldc, m - row, n - column, alpha, beta);
    }
  }
#endif
}

bool gpu_has_bf16_tensor_cores() {
  int id = 0, major = 0;
  cuda::check(cudaGetDevice(&id), "cudaGetDevice");
  cuda::check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, id), "cudaDeviceGetAttribute");
  return major >= 8;
}

}  // namespace

void multiply_on_tensor_cores(Stream& stream, Transpose ta, Transpose tb, double alpha, const Tensor& a, const Tensor& b,
                              double beta, const Tensor& c) {
  if (a.dtype() != Dtype::kBf16) throw InputError("--gemm tensor-core needs MODE=cuda and bf16; use blas or hand");
  static const bool kCapable = gpu_has_bf16_tensor_cores();
  if (!kCapable) throw InputError("--gemm tensor-core needs a GPU of sm_80 or later; use blas or hand");
  const auto [m, n, k] = gemm_size(ta, tb, a, b, c);
  const Grid grid(static_cast<unsigned>((m + kTile - 1) / kTile), static_cast<unsigned>((n + kTile - 1) / kTile));
  const auto run = [&]<bool kTransA, bool kTransB, typename O>() {
    launch<gemm_tensor_core_kernel<kTransA, kTransB, O>>(stream, grid, unsigned{kThreads}, c.data<O>(), a.data<__nv_bfloat16>(),
                                                         b.data<__nv_bfloat16>(), m, n, k, a.ld(), b.ld(), c.ld(),
                                                         static_cast<float>(alpha), static_cast<float>(beta));
  };
  const bool left = ta == Transpose::kYes, right = tb == Transpose::kYes;
  const auto run_to = [&]<typename O>() {
    if (left && right) return run.template operator()<true, true, O>();
    if (left) return run.template operator()<true, false, O>();
    if (right) return run.template operator()<false, true, O>();
    run.template operator()<false, false, O>();
  };
  c.dtype() == Dtype::kBf16 ? run_to.template operator()<bf16>() : run_to.template operator()<float>();
}

}  // namespace ref5d::gemm_backend
