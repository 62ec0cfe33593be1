// The hand-written matrix product: a block for each tile of C (gemm_tile.h).
#include "common/device/launch.h"
#include "common/kernels/dispatch.h"
#include "common/kernels/gemm.h"
#include "common/kernels/gemm_tile.h"

namespace ref5d {
namespace {

using namespace gemm_tile;

template <bool kTransA, bool kTransB, typename T, typename O>
__global__ void __launch_bounds__(kThreads) gemm_hand_kernel(Product<T, O> product, Acc<T> alpha, Acc<T> beta) {
  multiply<kTransA, kTransB>(product, std::int64_t{blockIdx.x} * kTileM, std::int64_t{blockIdx.y} * kTileN, alpha, beta);
}

}  // namespace

void gemm_hand(Stream& stream, Transpose ta, Transpose tb, double alpha, const Tensor& a, const Tensor& b, double beta,
               const Tensor& c) {
  const GemmSize s = gemm_size(ta, tb, a, b, c);
  const Grid grid(tiles_of(s.m, kTileM), tiles_of(s.n, kTileN));
  dispatch_with_output(a.dtype(), c.dtype(), [&]<typename T, typename O>() {
    const Product<T, O> product{c.data<O>(), a.data<T>(), b.data<T>(), s.m, s.n, s.k, a.ld(), b.ld(), c.ld()};
    auto run = [&]<bool kTransA, bool kTransB>() {
      launch<gemm_hand_kernel<kTransA, kTransB, T, O>>(stream, grid, unsigned{kThreads}, product, Acc<T>(alpha), Acc<T>(beta));
    };
    dispatch_transposes(ta, tb, run);
  });
}

}  // namespace ref5d
