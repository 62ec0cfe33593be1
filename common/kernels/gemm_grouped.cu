// Matrix products of several sizes in one launch for every 32 of them: a block for each tile of each (gemm_tile.h).
#include <algorithm>
#include <stdexcept>

#include "common/device/launch.h"
#include "common/kernels/dispatch.h"
#include "common/kernels/gemm.h"
#include "common/kernels/gemm_tile.h"

namespace ref5d {
namespace {

using namespace gemm_tile;

// A launch's arguments must fit into 4 KiB: more products take another launch.
constexpr int kMostProducts = 32;

// The tiles of product i are first_tile[i] .. first_tile[i + 1] - 1, column by column of the product.
template <typename T, typename O>
struct Group {
  Product<T, O> products[kMostProducts];
  Acc<T> betas[kMostProducts];
  unsigned first_tile[kMostProducts + 1];
};
static_assert(sizeof(Group<double, double>) + sizeof(double) <= 4096);

template <bool kTransA, bool kTransB, typename T, typename O>
__global__ void __launch_bounds__(kThreads) gemm_grouped_kernel(Group<T, O> group, Acc<T> alpha) {
  int i = 0;
  while (blockIdx.x >= group.first_tile[i + 1]) ++i;
  const Product<T, O>& p = group.products[i];
  const std::int64_t tile = blockIdx.x - group.first_tile[i], rows = (p.m + kTileM - 1) / kTileM;
  multiply<kTransA, kTransB>(p, tile % rows * kTileM, tile / rows * kTileN, alpha, group.betas[i]);
}

// Of at most kMostProducts.
template <typename T, typename O>
Group<T, O> group_of(Transpose ta, Transpose tb, const GemmOperands* begin, const GemmOperands* end) {
  Group<T, O> group{};
  int n = 0;
  for (const GemmOperands* p = begin; p != end; ++p, ++n) {
    const GemmSize s = gemm_size(ta, tb, p->a, p->b, p->c);
    group.products[n] = {p->c.data<O>(), p->a.data<T>(), p->b.data<T>(), s.m, s.n, s.k, p->a.ld(), p->b.ld(), p->c.ld()};
    group.betas[n] = Acc<T>(p->beta);
    group.first_tile[n + 1] = group.first_tile[n] + tiles_of(s.m, kTileM) * tiles_of(s.n, kTileN);
  }
  std::fill(group.first_tile + n, group.first_tile + kMostProducts + 1, group.first_tile[n]);
  return group;
}

}  // namespace

void gemm_grouped_hand(Stream& stream, Transpose ta, Transpose tb, double alpha, const std::vector<GemmOperands>& products) {
  if (products.empty()) return;
  const Dtype dtype = products.front().a.dtype(), output = products.front().c.dtype();
  for (const GemmOperands& p : products)
    if (p.a.dtype() != dtype || p.c.dtype() != output) throw std::logic_error("the products of a group must have one dtype");
  dispatch_with_output(dtype, output, [&]<typename T, typename O>() {
    for (std::size_t begin = 0; begin < products.size(); begin += kMostProducts) {
      const std::size_t end = std::min(products.size(), begin + kMostProducts);
      const Group<T, O> group = group_of<T, O>(ta, tb, products.data() + begin, products.data() + end);
      dispatch_transposes(ta, tb, [&]<bool kTransA, bool kTransB>() {
        launch<gemm_grouped_kernel<kTransA, kTransB, T, O>>(stream, group.first_tile[kMostProducts], unsigned{kThreads}, group,
                                                            Acc<T>(alpha));
      });
    }
  });
}

}  // namespace ref5d
