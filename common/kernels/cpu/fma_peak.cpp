// What bounds everything that multiplies on the CPU.
#include "common/kernels/cpu/fma_peak.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "common/kernels/cpu/gemm_micro.h"

namespace ref5d {

double fma_peak_gflops(int threads) {
  using V = gemm_backend::Vector<float>::Aligned;
  constexpr int kChains = 12, kLanes = gemm_backend::kLanes<float>;  // so many that each is ready when its turn comes
  constexpr std::int64_t kTimes = 2'000'000;
  static volatile float factor = 0.999F;  // unknown to the compiler
  double best = 0, total = 0;
  for (int round = 0; round < 10; ++round) {
    const auto begin = std::chrono::steady_clock::now();
#pragma omp parallel num_threads(threads) reduction(+ : total)
    {
      V sums[kChains];
      for (int i = 0; i < kChains * kLanes; ++i) sums[i / kLanes][i % kLanes] = factor * static_cast<float>(i);  // all differ
      const V x = V{} + factor;
      for (std::int64_t k = 0; k < kTimes; ++k) {
#pragma GCC unroll 12
        for (int i = 0; i < kChains; ++i) sums[i] = sums[i] * x + x;
      }
      for (int i = 0; i < kChains * kLanes; ++i) total += sums[i / kLanes][i % kLanes];
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    best = std::max(best, 2e-9 * kChains * kLanes * static_cast<double>(kTimes) * threads / seconds);
  }
  return std::isfinite(total) ? best : 0;  // a use of every sum, or none would be computed
}

}  // namespace ref5d
