// The matrix product by OpenBLAS, so that a row's bits depend neither on the number of rows nor on the number of threads.
//
// Left to itself OpenBLAS does neither. Its kernels for Haswell and Zen compute 12 rows of a row-major product at a time, then
// a rest of 4, 2 or 1, and the kernel of each size adds along K in an order of its own (one sum, or one over even and one
// over odd indices, and so on). Measured: rows in whole blocks of 12 always have the same bits. Its threads cut C wherever
// the sizes suggest. So every call here has a multiple of 12 rows and runs on one thread, and the threads of a rank share
// out blocks of 12 rows.
#include <cblas.h>
#include <omp.h>

#include <algorithm>
#include <mutex>
#include <vector>

#include "common/device/cpu/executor.h"
#include "common/device/error.h"
#include "common/kernels/gemm_backend.h"

namespace ref5d::gemm_backend {
namespace {

constexpr std::int64_t kRowBlock = 12;
// Less than some 40 us of work: waking another thread would take as long.
constexpr double kFlopsWorthSharing = 3e6;
// Where columns are shared out: pieces of about this width. Their number depends on the product alone, since a cut can change
// bits.
constexpr std::int64_t kPieceWidth = 320;
// OpenBLAS begins afresh after about 15000 rows (its buffer's size), not at a multiple of 12.
constexpr std::int64_t kRowsPerCall = 512 * kRowBlock;

void blas(CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, int m, int n, int k, double alpha, const float* a, int lda, const float* b,
          int ldb, double beta, float* c, int ldc) {
  cblas_sgemm(CblasRowMajor, ta, tb, m, n, k, static_cast<float>(alpha), a, lda, b, ldb, static_cast<float>(beta), c, ldc);
}
void blas(CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, int m, int n, int k, double alpha, const double* a, int lda, const double* b,
          int ldb, double beta, double* c, int ldc) {
  cblas_dgemm(CblasRowMajor, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

template <typename T>
struct RowsOfC {
  const T* a;
  T* c;
  std::int64_t rows;
  int lda, ldc;
};

// One product in plain numbers: what the queue entry holds. (Tensors in it would be freed when it has run, and the memory
// ledger would depend on when that is.)
template <typename T>
struct Product {
  CBLAS_TRANSPOSE ta, tb;
  int n, k, ldb;
  double alpha, beta;
  const T* b;
  std::vector<RowsOfC<T>> parts;

  [[nodiscard]] std::int64_t blocks() const {
    std::int64_t total = 0;
    for (const auto& p : parts) total += (p.rows + kRowBlock - 1) / kRowBlock;
    return total;
  }
  [[nodiscard]] double flops() const { return 2.0 * static_cast<double>(blocks() * kRowBlock) * n * k; }
  // Every thread packs what it reads of B. A weight gradient is short and wide with a long sum (its K is the tokens): there
  // packing B twice would cost a third of the product, so its columns are shared out instead of its rows.
  [[nodiscard]] bool by_columns() const { return ta == CblasTrans && n >= 128 && n > parts.front().rows; }
  [[nodiscard]] std::int64_t pieces() const { return std::max<std::int64_t>(2, (n + kPieceWidth / 2) / kPieceWidth); }
  [[nodiscard]] std::int64_t shares() const { return by_columns() ? pieces() : blocks(); }
  // Computes the shares from begin to end.
  void run_shares(std::int64_t begin, std::int64_t end) const {
    if (!by_columns()) return run(begin, end);
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t first = n * i / pieces(), last = n * (i + 1) / pieces();
      Product piece = *this;
      piece.n = static_cast<int>(last - first);
      piece.b = b + (tb == CblasTrans ? first * ldb : first);
      for (auto& p : piece.parts) p.c += first;
      piece.run(0, piece.blocks());
    }
  }
  // Computes the blocks of rows from begin to end, counted over all parts.
  void run(std::int64_t begin, std::int64_t end) const {
    for (const RowsOfC<T>& p : parts) {
      const std::int64_t of_part = (p.rows + kRowBlock - 1) / kRowBlock, last = std::min(p.rows, end * kRowBlock);
      for (std::int64_t row = std::max<std::int64_t>(begin, 0) * kRowBlock; row < last; row += kRowsPerCall) {
        const int rows = static_cast<int>(std::min(kRowsPerCall, last - row));
        const T* a = p.a + (ta == CblasTrans ? row : row * p.lda);
        blas(ta, tb, rows, n, k, alpha, a, p.lda, b, ldb, beta, p.c + row * p.ldc, p.ldc);
      }
      begin -= of_part;
      end -= of_part;
    }
  }
};

// For the calling thread and its current parallel region. OpenBLAS built with OpenMP asks OpenMP for the number of threads at
// each call; built with pthreads it keeps a number of its own.
void use_one_blas_thread() {
  static std::once_flag once;
  std::call_once(once, [] { openblas_set_num_threads(1); });
  omp_set_num_threads(1);
}

// BLAS insists on a leading dim of at least a row, also where there is only one row.
int leading_dim(const Tensor& t) { return static_cast<int>(std::max(t.ld(), t.dim(1))); }

template <typename T>
void enqueue_product(Stream& stream, Transpose ta, Transpose tb, double alpha, std::span<const Part> parts, const Tensor& b,
                     double beta) {
  const bool right = tb == Transpose::kYes;
  Product<T> product;
  product.ta = ta == Transpose::kYes ? CblasTrans : CblasNoTrans;
  product.tb = right ? CblasTrans : CblasNoTrans;
  product.n = static_cast<int>(b.dim(right ? 0 : 1));
  product.k = static_cast<int>(b.dim(right ? 1 : 0));
  product.ldb = leading_dim(b);
  product.alpha = alpha;
  product.beta = beta;
  product.b = b.data<T>();
  for (const Part& p : parts)
    product.parts.push_back({p.a.data<T>(), p.c.data<T>(), p.c.dim(0), leading_dim(p.a), leading_dim(p.c)});
  static const std::string kName = "gemm";
  cpu::enqueue(stream, kName, [product = std::move(product)] {
    const std::int64_t shares = product.shares();
    const bool worth_sharing = product.flops() >= kFlopsWorthSharing;
    const int threads = worth_sharing ? static_cast<int>(std::min<std::int64_t>(shares, cpu::kernel_threads())) : 1;
#pragma omp parallel num_threads(threads)
    {
      use_one_blas_thread();
#pragma omp for schedule(static, 1)
      for (int t = 0; t < threads; ++t) product.run_shares(shares * t / threads, shares * (t + 1) / threads);
    }
  });
}

}  // namespace

bool has_bf16() { return false; }

RowSplit split_rows(std::int64_t m) {
  const std::int64_t rest = m % kRowBlock;
  return {m - rest, rest > 0 ? kRowBlock : 0};
}

void multiply(Stream& stream, Transpose ta, Transpose tb, double alpha, std::span<const Part> parts, const Tensor& b,
              double beta) {
  if (b.dtype() == Dtype::kFp64) return enqueue_product<double>(stream, ta, tb, alpha, parts, b, beta);
  enqueue_product<float>(stream, ta, tb, alpha, parts, b, beta);
}

void multiply_on_tensor_cores(Stream&, Transpose, Transpose, double, const Tensor&, const Tensor&, double, const Tensor&) {
  throw InputError("--gemm tensor-core needs MODE=cuda and bf16; use blas or hand");
}

}  // namespace ref5d::gemm_backend
