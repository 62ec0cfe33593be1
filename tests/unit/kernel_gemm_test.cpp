// gemm: every transpose, dtype and kind against a plain double reference, over awkward sizes and leading dims.
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "common/device/error.h"
#include "common/kernels/gemm.h"
#include "common/kernels/gemm_backend.h"
#include "tests/support/kernel_testing.h"

namespace ref5d {
namespace {

using testing::device_tensor;
using testing::poisoned;
using testing::random_values;
using testing::rounded;
using testing::values_of;

struct Case {
  Transpose ta = Transpose::kNo, tb = Transpose::kNo;
  std::int64_t m = 0, n = 0, k = 0;
  Dtype dtype = Dtype::kFp64, output = Dtype::kFp64;
  double alpha = 1, beta = 0;
  std::int64_t gap_a = 0, gap_b = 0, gap_c = 0;  // columns that lie between the end of a row and the next

  [[nodiscard]] std::string text(GemmKind kind) const {
    return std::string(kind == GemmKind::kHand ? "hand" : "blas") + " ta=" + (ta == Transpose::kYes ? "1" : "0") +
           " tb=" + (tb == Transpose::kYes ? "1" : "0") + " m=" + std::to_string(m) + " n=" + std::to_string(n) +
           " k=" + std::to_string(k) + " " + dtype_name(dtype) + " to " + dtype_name(output) +
           " alpha=" + std::to_string(alpha) + " beta=" + std::to_string(beta) + " gaps " + std::to_string(gap_a) + " " +
           std::to_string(gap_b) + " " + std::to_string(gap_c);
  }
};

// A matrix whose rows are `gap` elements apart; what lies between is NaN, so that reading it shows.
struct Matrix {
  Tensor whole, inner;
  std::vector<double> values;
};
Matrix matrix(const std::vector<double>& values, std::int64_t rows, std::int64_t columns, std::int64_t gap, Dtype dtype) {
  Matrix m;
  m.values = rounded(values, dtype);
  std::vector<double> spread(static_cast<std::size_t>(rows * (columns + gap)), std::nan(""));
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c)
      spread[static_cast<std::size_t>(r * (columns + gap) + c)] = m.values[static_cast<std::size_t>(r * columns + c)];
  }
  m.whole = device_tensor(spread, {rows, columns + gap}, dtype);
  m.inner = m.whole.columns(0, columns);
  return m;
}

Matrix operand(const Case& c, bool left, unsigned seed) {
  std::int64_t rows = left ? c.m : c.k, columns = left ? c.k : c.n;
  if ((left ? c.ta : c.tb) == Transpose::kYes) std::swap(rows, columns);
  return matrix(random_values(rows * columns, seed), rows, columns, left ? c.gap_a : c.gap_b, c.dtype);
}

std::vector<double> reference(const Case& c, const std::vector<double>& a, const std::vector<double>& b,
                              const std::vector<double>& before) {
  std::vector<double> out(static_cast<std::size_t>(c.m * c.n));
  const auto at = [](const std::vector<double>& v, std::int64_t row, std::int64_t column, std::int64_t rows,
                     std::int64_t columns, Transpose t) {
    return v[static_cast<std::size_t>(t == Transpose::kYes ? column * rows + row : row * columns + column)];
  };
  for (std::int64_t i = 0; i < c.m; ++i) {
    for (std::int64_t j = 0; j < c.n; ++j) {
      double sum = 0;
      for (std::int64_t l = 0; l < c.k; ++l) sum += at(a, i, l, c.m, c.k, c.ta) * at(b, l, j, c.k, c.n, c.tb);
      const auto o = static_cast<std::size_t>(i * c.n + j);
      out[o] = c.alpha * sum + (c.beta == 0 ? 0 : c.beta * before[o]);
    }
  }
  return out;
}

// Within a few roundings of the sum's terms, and one of the output.
double allowed(const Case& c) {
  const double sum = c.dtype == Dtype::kFp64 ? 1e-14 : 1e-6;
  return c.output == Dtype::kBf16 ? 4e-3 : sum;
}

void expect_right(const Case& c, GemmKind kind) {
  const std::string text = c.text(kind);
  const Matrix a = operand(c, true, 1), b = operand(c, false, 2);
  const std::vector<double> start =
      c.beta == 0 ? std::vector<double>(static_cast<std::size_t>(c.m * c.n), std::nan("")) : random_values(c.m * c.n, 3);
  const Matrix result = matrix(start, c.m, c.n, c.gap_c, c.output);
  gemm(device().compute(), kind, c.ta, c.tb, c.alpha, a.inner, b.inner, c.beta, result.inner);
  const std::vector<double> got = values_of(result.inner);
  EXPECT_LE(testing::relative_error(got, reference(c, a.values, b.values, result.values)), allowed(c)) << text;
  // What lies between the rows of C is not ours.
  const std::vector<double> all = values_of(result.whole);
  for (std::int64_t r = 0; r < c.m; ++r) {
    for (std::int64_t g = 0; g < c.gap_c; ++g)
      ASSERT_TRUE(std::isnan(all[static_cast<std::size_t>(r * (c.n + c.gap_c) + c.n + g)])) << text;
  }
}

constexpr GemmKind kKinds[] = {GemmKind::kBlas, GemmKind::kHand};
constexpr Transpose kTransposes[] = {Transpose::kNo, Transpose::kYes};
constexpr std::pair<Dtype, Dtype> kDtypes[] = {
    {Dtype::kFp64, Dtype::kFp64}, {Dtype::kFp32, Dtype::kFp32}, {Dtype::kBf16, Dtype::kBf16}, {Dtype::kBf16, Dtype::kFp32}};

template <typename F>
void for_all_modes(F&& f) {
  for (GemmKind kind : kKinds) {
    for (Transpose ta : kTransposes) {
      for (Transpose tb : kTransposes) {
        for (auto [dtype, output] : kDtypes) {
          Case c;
          c.ta = ta, c.tb = tb, c.dtype = dtype, c.output = output;
          f(kind, c);
        }
      }
    }
  }
}

TEST(Gemm, MatchesTheReferenceOverAwkwardSizes) {
  constexpr std::int64_t kSizes[][3] = {{1, 1, 1},    {1, 7, 5},    {2, 1, 33},   {13, 1, 16},  {3, 2, 1},     {7, 31, 17},
                                        {12, 12, 12}, {13, 65, 15}, {63, 64, 65}, {64, 64, 16}, {65, 129, 33}, {130, 67, 47}};
  for_all_modes([&](GemmKind kind, Case c) {
    for (const auto& [m, n, k] : kSizes) {
      c.m = m, c.n = n, c.k = k;
      expect_right(c, kind);
    }
  });
}

// Beyond the blocks of K, of rows and of columns that a library or our own kernel works in.
TEST(Gemm, MatchesTheReferenceWhenLong) {
  for (GemmKind kind : kKinds) {
    Case c;
    c.m = 5, c.n = 3, c.k = 2011, c.tb = Transpose::kYes;
    expect_right(c, kind);
    c.m = 6151, c.n = 2, c.k = 3;
    expect_right(c, kind);
    c.ta = Transpose::kYes;
    expect_right(c, kind);
    for (Transpose ta : kTransposes) {
      c.ta = ta, c.m = 50, c.n = 2070, c.k = 270, c.beta = 0.5;
      expect_right(c, kind);
      c.m = 211, c.n = 19, c.k = 1300;
      expect_right(c, kind);
    }
  }
}

TEST(Gemm, TakesAnyLeadingDims) {
  for_all_modes([](GemmKind kind, Case c) {
    c.gap_a = 3, c.gap_b = 1, c.gap_c = 5;
    for (const auto& [m, n, k] : {std::tuple{1, 1, 1}, {1, 9, 4}, {33, 1, 7}, {37, 66, 29}}) {
      c.m = m, c.n = n, c.k = k, c.beta = 0;
      expect_right(c, kind);
      c.beta = 1;
      expect_right(c, kind);
    }
  });
}

TEST(Gemm, ScalesAndAdds) {
  for_all_modes([](GemmKind kind, Case c) {
    c.m = 29, c.n = 19, c.k = 23;
    for (const auto& [alpha, beta] : {std::pair{1.0, 1.0}, {-0.5, 0.0}, {2.0, -0.25}, {0.0, 0.5}, {0.0, 0.0}}) {
      c.alpha = alpha, c.beta = beta;
      expect_right(c, kind);
    }
  });
}

TEST(Gemm, EmptyProducts) {
  for_all_modes([](GemmKind kind, Case c) {
    c.gap_c = 1;
    for (const auto& [m, n, k] : {std::tuple{0, 3, 4}, {3, 0, 4}, {0, 0, 0}, {0, 5, 0}}) {
      c.m = m, c.n = n, c.k = k;
      expect_right(c, kind);  // nothing to compute, nothing touched
    }
    c.m = 3, c.n = 5, c.k = 0;
    for (double beta : {0.0, 1.0, 0.5}) {
      c.beta = beta;
      expect_right(c, kind);
    }
  });
}

// fp64 to the last bits: alpha and beta at their simplest, integers small enough to be exact in any order.
TEST(Gemm, IsExactForSmallIntegers) {
  for_all_modes([](GemmKind kind, Case c) {
    c.m = 40, c.n = 21, c.k = 16, c.alpha = 2, c.beta = -1;
    auto small = [](std::int64_t n, unsigned seed) {
      std::vector<double> v = random_values(n, seed);
      for (double& x : v) x = std::clamp(std::nearbyint(x), -1.0, 1.0);
      return v;
    };
    const bool left = c.ta == Transpose::kYes, right = c.tb == Transpose::kYes;
    const Matrix a = matrix(small(c.m * c.k, 4), left ? c.k : c.m, left ? c.m : c.k, 0, c.dtype);
    const Matrix b = matrix(small(c.k * c.n, 5), right ? c.n : c.k, right ? c.k : c.n, 2, c.dtype);
    const Matrix out = matrix(small(c.m * c.n, 6), c.m, c.n, 0, c.output);
    gemm(device().compute(), kind, c.ta, c.tb, c.alpha, a.inner, b.inner, c.beta, out.inner);
    EXPECT_EQ(values_of(out.inner), reference(c, a.values, b.values, out.values)) << c.text(kind);
  });
}

// bf16 sums in fp32: what bf16 sums would lose is there, and the result is rounded once.
TEST(Gemm, Bf16SumsInFp32) {
  constexpr std::int64_t kDepth = 4096;
  for (GemmKind kind : kKinds) {
    std::vector<double> ones(kDepth, 1.0);
    const Tensor a = device_tensor(ones, {1, kDepth}, Dtype::kBf16), b = device_tensor(ones, {kDepth, 1}, Dtype::kBf16);
    const Tensor c = device_tensor({1.0}, {1, 1}, Dtype::kFp32);
    gemm(device().compute(), kind, Transpose::kNo, Transpose::kNo, 1, a, b, 1, c);
    EXPECT_EQ(values_of(c)[0], 4097.0);
  }
}

// Rows of a product of `m` rows, as bits.
HostTensor rows_of_product(GemmKind kind, Transpose tb, const Tensor& x, const Tensor& w, std::int64_t m, std::int64_t n,
                           double alpha, double beta) {
  const Tensor y = device_tensor(std::vector<double>(static_cast<std::size_t>(m * n), 0.3), {m, n}, x.dtype());
  gemm(device().compute(), kind, Transpose::kNo, tb, alpha, x.rows(0, m), w, beta, y);
  return y.to_host(device().compute());
}

// cuBLAS chooses its kernel by the sizes, and promises nothing.
bool rows_are_independent(GemmKind kind) {
#ifdef REF5D_CUDA
  return kind == GemmKind::kHand;
#else
  (void)kind;
  return true;
#endif
}

// The linear layer's y = x W^T and dx = dy W: a row's bits are the same however many rows are computed with it.
TEST(Gemm, BitsOfARowDoNotDependOnTheNumberOfRows) {
  constexpr std::int64_t kMost = 64;
  for (GemmKind kind : kKinds) {
    if (!rows_are_independent(kind)) continue;
    for (Dtype dtype : {Dtype::kFp64, Dtype::kFp32, Dtype::kBf16}) {
      for (Transpose tb : kTransposes) {
        for (const auto& [n, k] :
             {std::pair<std::int64_t, std::int64_t>{1, 65}, {8, 64}, {65, 64}, {192, 64}, {64, 500}, {17, 1100}}) {
          const Tensor x = device_tensor(random_values(kMost * k, 7), {kMost, k}, dtype);
          const Tensor w = device_tensor(random_values(n * k, 8), tb == Transpose::kYes ? Shape{n, k} : Shape{k, n}, dtype);
          for (const auto& [alpha, beta] : {std::pair{1.0, 0.0}, {1.0, 1.0}, {0.7, 0.0}, {0.7, 1.0}, {0.7, 0.3}}) {
            const HostTensor of_37 = rows_of_product(kind, tb, x, w, 37, n, alpha, beta);
            for (std::int64_t m : {1, 2, 3, 5, 8, 12, 36, 64}) {
              const HostTensor of_m = rows_of_product(kind, tb, x, w, m, n, alpha, beta);
              const std::size_t bytes = std::min(of_m.data.size(), of_37.data.size());
              EXPECT_EQ(std::memcmp(of_m.data.data(), of_37.data.data(), bytes), 0)
                  << (kind == GemmKind::kHand ? "hand " : "blas ") << dtype_name(dtype) << " m=" << m << " n=" << n
                  << " k=" << k << (tb == Transpose::kYes ? " transposed" : "") << " alpha=" << alpha << " beta=" << beta;
            }
          }
        }
      }
    }
  }
}

TEST(Gemm, TwoRunsAndOneOrTwoThreadsAgreeBitwise) {
  const int threads = device().threads();
  const auto run_all = [](int threads_of_run) {
    device().set_threads(threads_of_run);
    std::vector<HostTensor> results;
    for_all_modes([&](GemmKind kind, Case c) {
      c.m = 117, c.n = 131, c.k = 303;  // enough for several threads
      const Matrix a = operand(c, true, 1), b = operand(c, false, 2);
      const Tensor out = poisoned({c.m, c.n}, c.output);
      gemm(device().compute(), kind, c.ta, c.tb, 1, a.inner, b.inner, 0, out);
      results.push_back(out.to_host(device().compute()));
    });
    return results;
  };
  const auto first = run_all(1), again = run_all(1), by_two = run_all(2);
  device().set_threads(threads);
  std::size_t i = 0;
  for_all_modes([&](GemmKind kind, const Case& c) {
    EXPECT_EQ(first[i].data, again[i].data) << c.text(kind) << ": two runs";
    if (rows_are_independent(kind)) {
      EXPECT_EQ(first[i].data, by_two[i].data) << c.text(kind) << ": two threads";
    }
    ++i;
  });
}

TEST(Gemm, PaddingIsZeroAndConverts) {
  const Matrix from = matrix({1, 2.0009765625, 3, 4, 5, 6}, 2, 3, 1, Dtype::kFp32);
  const auto corner = [&](std::int64_t rows, std::int64_t columns, Dtype dtype) {
    const Tensor to = poisoned({rows, columns}, dtype);
    gemm_backend::copy_corner(device().compute(), to, from.inner);
    return values_of(to);
  };
  EXPECT_EQ(corner(3, 5, Dtype::kFp64), (std::vector<double>{1, 2.0009765625, 3, 0, 0, 4, 5, 6, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(corner(1, 2, Dtype::kBf16), (std::vector<double>{1, 2}));
}

// Workspace is gone when gemm() returns, and its peak does not depend on when the work runs.
TEST(Gemm, WorkspaceIsCountedAtIssue) {
  const Tensor x = device_tensor(random_values(37 * 16, 1), {37, 16}, Dtype::kBf16);
  const Tensor w = device_tensor(random_values(24 * 16, 2), {24, 16}, Dtype::kBf16);
  const Tensor y = poisoned({37, 24}, Dtype::kBf16);
  MemoryLedger& ledger = device().memory();
  const std::int64_t before = ledger.total_current();
  gemm(device().compute(), GemmKind::kBlas, Transpose::kNo, Transpose::kYes, 1, x, w, 0, y);
  EXPECT_EQ(ledger.total_current(), before);
  gemm(device().compute(), GemmKind::kBlas, Transpose::kNo, Transpose::kYes, 1, x, w, 0, y);
  device().synchronize();
  EXPECT_EQ(ledger.total_current(), before);
}

TEST(Gemm, RefusesOperandsThatDoNotFit) {
  const auto make = [](Shape shape, Dtype dtype) {
    return Tensor::zeros(std::move(shape), dtype, MemoryCategory::kWorkspace, device().compute());
  };
  const Tensor a = make({2, 3}, Dtype::kFp32), b = make({3, 4}, Dtype::kFp32), c = make({2, 4}, Dtype::kFp32);
  const auto run = [&](Transpose ta, Transpose tb, const Tensor& x, const Tensor& y, const Tensor& z) {
    gemm(device().compute(), GemmKind::kBlas, ta, tb, 1, x, y, 0, z);
  };
  constexpr auto kNo = Transpose::kNo, kYes = Transpose::kYes;
  EXPECT_NO_THROW(run(kNo, kNo, a, b, c));
  EXPECT_THROW(run(kYes, kNo, a, b, c), std::logic_error);
  EXPECT_THROW(run(kNo, kYes, a, b, c), std::logic_error);
  EXPECT_THROW(run(kNo, kNo, a, b, make({4, 2}, Dtype::kFp32)), std::logic_error);
  EXPECT_THROW(run(kNo, kNo, a, make({3, 4}, Dtype::kFp64), c), std::logic_error);
  EXPECT_THROW(run(kNo, kNo, a, b, make({2, 4}, Dtype::kBf16)), std::logic_error);
  EXPECT_THROW(run(kNo, kNo, make({2, 3, 1}, Dtype::kFp32), b, c), std::logic_error);
  EXPECT_THROW(run(kNo, kNo, make({2, 3}, Dtype::kInt32), make({3, 4}, Dtype::kInt32), c), std::logic_error);
}

#ifndef REF5D_CUDA
TEST(Gemm, TensorCoresNeedAGpu) {
  const Tensor a = poisoned({2, 2}, Dtype::kBf16);
  try {
    gemm(device().compute(), GemmKind::kTensorCore, Transpose::kNo, Transpose::kNo, 1, a, a, 0, poisoned({2, 2}, Dtype::kBf16));
    FAIL() << "no error";
  } catch (const InputError& e) {
    EXPECT_STREQ(e.what(), "--gemm tensor-core needs MODE=cuda and bf16; use blas or hand");
  }
}
#else
TEST(Gemm, TensorCoresMatchTheReference) {
  for (Transpose ta : kTransposes) {
    for (Transpose tb : kTransposes) {
      for (Dtype output : {Dtype::kBf16, Dtype::kFp32}) {
        Case c;
        c.ta = ta, c.tb = tb, c.dtype = Dtype::kBf16, c.output = output, c.gap_a = 3, c.gap_b = 1, c.gap_c = 5;
        for (const auto& [m, n, k] : {std::tuple{1, 1, 1}, {128, 128, 32}, {129, 65, 33}, {37, 200, 100}}) {
          c.m = m, c.n = n, c.k = k;
          for (double beta : {0.0, 1.0}) {
            c.beta = beta;
            expect_right(c, GemmKind::kTensorCore);
          }
        }
      }
    }
  }
  const Tensor a = poisoned({2, 2}, Dtype::kFp32);
  EXPECT_THROW(gemm(device().compute(), GemmKind::kTensorCore, Transpose::kNo, Transpose::kNo, 1, a, a, 0,
                    poisoned({2, 2}, Dtype::kFp32)),
               InputError);
}
#endif

}  // namespace
}  // namespace ref5d
