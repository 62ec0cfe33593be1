// The matrix product on the CPU, packed and register-tiled (gemm_micro.h), so that a row's bits depend neither on the number
// of rows nor on the number of threads. OpenBLAS promises neither: its kernels add along K in an order that depends on how
// many rows are left, and its threads cut C wherever the sizes suggest. common/docs/performance.md sets the two side by side.
#include <omp.h>

#include <memory>
#include <new>

#include "common/device/cpu/executor.h"
#include "common/device/cpu/observe.h"
#include "common/device/error.h"
#include "common/kernels/cpu/gemm_micro.h"
#include "common/kernels/gemm_backend.h"

namespace ref5d::gemm_backend {
namespace {

// Less than some 40 us of work: waking another thread would take as long.
constexpr double kFlopsWorthSharing = 3e6;
// Columns of C for which B is packed at a time.
constexpr std::int64_t kColumnBlock = 2048;
// Rows of C computed for all of them: so many that their rows of A stay in the second-level cache with a few panels of B.
constexpr std::int64_t kRowBlock = 8 * kTileRows, kPackedRowBlock = 32 * kTileRows;

std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Scratch memory of a thread, which grows. As cuBLAS's workspace, it is not in the memory ledger.
template <typename T>
T* scratch(std::int64_t numel) {
  struct Free {
    void operator()(T* p) const { ::operator delete[](p, std::align_val_t{64}); }
  };
  static thread_local std::unique_ptr<T[], Free> memory;
  static thread_local std::int64_t capacity = 0;
  if (numel > capacity) {
    memory.reset(static_cast<T*>(::operator new[](static_cast<std::size_t>(numel) * sizeof(T), std::align_val_t{64})));
    capacity = numel;
  }
  return memory.get();
}

struct Range {
  std::int64_t begin, end;
  [[nodiscard]] std::int64_t size() const { return end - begin; }
};
// Part i of n of 0..count-1, cut at multiples of `unit`.
Range part(std::int64_t count, std::int64_t unit, std::int64_t i, std::int64_t n) {
  const std::int64_t units = divide_up(count, unit);
  return {std::min(count, units * i / n * unit), std::min(count, units * (i + 1) / n * unit)};
}

// S: the inputs' type, T: that of the sums and of C. Plain numbers, since a queue entry holds it: tensors in it would be freed
// when it has run, and the memory ledger would depend on when that is.
template <typename S, typename T>
struct Product {
  Operand<S> a, b;
  T* c;
  std::int64_t m, n, k, ldc;
  T alpha, beta;
  // K is summed in steps of this, and C takes up the sum of each. It depends on K alone: so do a row's bits.
  std::int64_t step = divide_up(divide_up(k, divide_up(k, kDepth)), 8) * 8;

  static constexpr int kColumns = kTileColumns<T>;
  // The rows of A are read as they lie if they can be: contiguous along K, in the type of the sums.
  [[nodiscard]] bool packs_a() const { return !std::is_same_v<S, T> || a.k_stride != 1; }

  // Every thread computes a rectangle of C and packs for itself what it reads: what another core has just written comes slowly
  // (sharing the packed operands made weight gradients slower on two cores).
  void run(int threads) const {
    int down = 1;  // rectangles one above the other: where the threads together pack and read least
    for (int d = 1; d <= threads; ++d) {
      if (threads % d == 0 && m * (threads / d) + n * d <= m * (threads / down) + n * down) down = d;
    }
    const int across = threads / down;
    cpu::RegionError error;
#pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (int t = 0; t < threads; ++t)
      error.guard([&] { rectangle(part(m, kTileRows, t % down, down), part(n, kColumns, t / down, across)); });
    error.rethrow();
  }

  void rectangle(const Range& rows, const Range& columns) const {
    // Steps packed at a time: with several, a block of rows of C stays in the cache for all of them.
    const std::int64_t depth = (packs_a() ? 1 : 4) * step, row_block = packs_a() ? kPackedRowBlock : kRowBlock;
    for (std::int64_t n0 = columns.begin; n0 < columns.end; n0 += kColumnBlock) {
      const Range block_columns{n0, std::min(columns.end, n0 + kColumnBlock)};
      for (std::int64_t k0 = 0; k0 < k; k0 += depth) {
        const Range ks{k0, std::min(k, k0 + depth)};
        const std::int64_t b_size = step_size(block_columns.size()) * divide_up(ks.size(), step);
        T* const packed_b = scratch<T>(b_size + row_block / kTileRows * panel_size<T>(kTileRows, step));
        pack_b(packed_b, ks, block_columns);
        for (std::int64_t m0 = rows.begin; m0 < rows.end; m0 += row_block)
          block(ks, {m0, std::min(rows.end, m0 + row_block)}, block_columns, packed_b, packed_b + b_size);
      }
    }
  }

  // Elements of one step of B, packed.
  [[nodiscard]] std::int64_t step_size(std::int64_t columns) const {
    return divide_up(columns, kColumns) * panel_size<T>(kColumns, step);
  }

  void pack_b(T* to, const Range& ks, const Range& columns) const {
    for (std::int64_t k1 = ks.begin; k1 < ks.end; k1 += step, to += step_size(columns.size()))
      pack<kColumns>(to, b.from(k1, columns.begin), step, std::min(step, ks.end - k1), columns.size());
  }

  void scale(const Range& rows, const Range& columns) const {
    for (std::int64_t i = rows.begin; i < rows.end; ++i)
      for (std::int64_t j = columns.begin; j < columns.end; ++j) c[i * ldc + j] *= beta;
  }

  void block(const Range& ks, const Range& rows, const Range& columns, const T* packed_b, T* packed_a) const {
    for (std::int64_t k1 = ks.begin; k1 < ks.end; k1 += step, packed_b += step_size(columns.size())) {
      const std::int64_t depth = std::min(step, ks.end - k1);
      // Rows that do not fill a tile are packed in any case, with zeros.
      const std::int64_t direct = packs_a() ? 0 : rows.size() / kTileRows * kTileRows;
      pack<kTileRows>(packed_a, a.from(k1, rows.begin + direct), step, depth, rows.size() - direct);
      if (k1 == 0 && beta != 0 && beta != 1) scale(rows, columns);
      Output<T> out{nullptr, ldc, 0, 0, alpha, k1 > 0 || beta != 0};
      const T* panel = packed_b;
      for (std::int64_t j = columns.begin; j < columns.end; j += kColumns, panel += panel_size<T>(kColumns, step)) {
        out.columns = std::min<std::int64_t>(kColumns, columns.end - j);
        for (std::int64_t i = 0; i < rows.size(); i += kTileRows) {
          out.rows = std::min<std::int64_t>(kTileRows, rows.size() - i);
          out.c = c + (rows.begin + i) * ldc + j;
          if (i >= direct) {
            const T* const tile_of_a = packed_a + (i - direct) / kTileRows * panel_size<T>(kTileRows, step);
            tile<T, true>(depth, tile_of_a, 0, panel, out);
          } else if constexpr (std::is_same_v<S, T>) {
            tile<T, false>(depth, a.from(k1, rows.begin + i).at, a.stride, panel, out);
          }
        }
      }
    }
  }
};

// Where a matrix lies.
struct Extent {
  const void* at;
  std::size_t row_bytes, pitch;
  std::int64_t rows;
};
Extent extent(const Tensor& t) {
  const std::size_t size = dtype_size(t.dtype());
  return {t.raw(), static_cast<std::size_t>(t.dim(1)) * size, static_cast<std::size_t>(t.ld()) * size, t.dim(0)};
}

template <typename S, typename T>
void enqueue_product(Stream& stream, Transpose ta, Transpose tb, double alpha, const Tensor& a, const Tensor& b, double beta,
                     const Tensor& c) {
  const auto [m, n, k] = gemm_size(ta, tb, a, b, c);
  Product<S, T> product{.a = ta == Transpose::kYes ? Operand<S>{a.data<S>(), a.ld(), 1} : Operand<S>{a.data<S>(), 1, a.ld()},
                        .b = tb == Transpose::kYes ? Operand<S>{b.data<S>(), 1, b.ld()} : Operand<S>{b.data<S>(), b.ld(), 1},
                        .c = c.data<T>(),
                        .m = m,
                        .n = n,
                        .k = k,
                        .ldc = c.ld(),
                        .alpha = static_cast<T>(alpha),
                        .beta = static_cast<T>(beta)};
  static const std::string kName = "gemm";
  const Extent in_a = extent(a), in_b = extent(b), in_c = extent(c);
  cpu::enqueue(stream, kName, [product, in_a, in_b, in_c] {
    for (const Extent& e : {in_a, in_b}) emu::device_reads(e.at, e.row_bytes, e.rows, e.pitch);
    if (product.beta != 0) emu::device_reads(in_c.at, in_c.row_bytes, in_c.rows, in_c.pitch);
    emu::device_writes(in_c.at, in_c.row_bytes, in_c.rows, in_c.pitch);
    const double flops = static_cast<double>(gemm_flops(product.m, product.n, product.k));
    product.run(flops < kFlopsWorthSharing ? 1 : cpu::kernel_threads());
  });
}

}  // namespace

void multiply(Stream& stream, Transpose ta, Transpose tb, double alpha, const Tensor& a, const Tensor& b, double beta,
              const Tensor& c) {
  if (a.dtype() == Dtype::kFp64) return enqueue_product<double, double>(stream, ta, tb, alpha, a, b, beta, c);
  if (a.dtype() == Dtype::kFp32) return enqueue_product<float, float>(stream, ta, tb, alpha, a, b, beta, c);
  if (c.dtype() == Dtype::kFp32) return enqueue_product<bf16, float>(stream, ta, tb, alpha, a, b, beta, c);
  // Sums of several blocks of K meet in C: in fp32, rounded once.
  const Tensor wide = Tensor::empty({c.dim(0), c.dim(1)}, Dtype::kFp32, MemoryCategory::kWorkspace, stream);
  if (beta != 0) copy_corner(stream, wide, c);
  enqueue_product<bf16, float>(stream, ta, tb, alpha, a, b, beta, wide);
  copy_corner(stream, c, wide);
}

void multiply_on_tensor_cores(Stream&, Transpose, Transpose, double, const Tensor&, const Tensor&, double, const Tensor&) {
  throw InputError("--gemm tensor-core needs MODE=cuda and bf16; use blas or hand");
}

}  // namespace ref5d::gemm_backend
