#include "common/tools/kernel_bench.h"

#include <algorithm>

#include "common/device/device.h"
#include "common/kernels/elementwise.h"
#include "common/kernels/gemm.h"
#include "common/tools/kernel_inputs.h"

namespace ref5d {
namespace {

// More than any cache holds today.
constexpr std::int64_t kBeyondCaches = std::int64_t{512} << 20;  // bytes

Tensor bytes_tensor(std::int64_t bytes) {
  return Tensor::zeros({bytes / 4}, Dtype::kFp32, MemoryCategory::kWorkspace, device().compute());
}

double total_ms(const std::map<std::string, Profiler::Total>& kernels) {
  double us = 0;
  for (const auto& [name, total] : kernels) us += total.us;
  return us / 1e3;
}

std::map<std::string, Profiler::Total> profile(const std::function<void(Stream&)>& work) {
  device().synchronize();
  device().profiler().start();
  work(device().compute());
  device().synchronize();
  device().profiler().stop();
  return device().profiler().by_name();
}

double best_ms(const std::function<void(Stream&)>& work) {
  double best = total_ms(profile(work));
  for (int round = 0; round < 4; ++round) best = std::min(best, total_ms(profile(work)));
  return best;
}

// By reading, too: writes alone may pass the caches by.
void empty_caches() {
  static const Tensor* const kOther = new Tensor(bytes_tensor(kBeyondCaches));
  scale(device().compute(), *kOther, 0.5);
}

}  // namespace

MachineRates measure_rates(Dtype dtype) {
  MachineRates rates;
  {
    const Tensor from = bytes_tensor(kBeyondCaches), to = bytes_tensor(kBeyondCaches);
    // The best of three. On the CPU a plain copy has one thread, and what is written elsewhere than it was read from first
    // brings the old content into the caches, which scaling in place does not.
    const double ms =
        std::min({best_ms([&](Stream& s) { copy_on_device(s, to.raw(), from.raw(), from.bytes()); }),
                  best_ms([&](Stream& s) { convert(s, to, from); }), best_ms([&](Stream& s) { scale(s, to, 0.5); })});
    rates.bytes_per_s = 2e3 * static_cast<double>(kBeyondCaches) / ms;
  }
  const std::int64_t n = Device::mode() == "cuda" ? 8192 : 1024;
  CaseInputs inputs({"the product that measures the rate", dtype, true, {}}, CaseFill::kNothing);
  const Tensor a = inputs.normal({n, n}), b = inputs.normal({n, n}), c = inputs.target({n, n});
  const double ms = best_ms([&](Stream& s) { gemm(s, GemmKind::kBlas, Transpose::kNo, Transpose::kNo, 1, a, b, 0, c); });
  rates.flops_per_s = 1e3 * static_cast<double>(gemm_flops(n, n, n)) / ms;
  return rates;
}

std::vector<StepTime> time_case(const KernelCase& one, int rounds, bool cold) {
  CaseInputs inputs(one, CaseFill::kNothing);
  const PreparedCase prepared = one.prepare(inputs);
  std::vector<StepTime> times;
  for (const CaseStep& step : prepared.steps) {
    std::vector<std::map<std::string, Profiler::Total>> measured;
    for (int round = 0; round <= rounds; ++round) {
      if (cold) empty_caches();
      measured.push_back(profile(step.run));
    }
    measured.erase(measured.begin());  // the warm-up
    const auto middle = measured.begin() + static_cast<std::ptrdiff_t>(measured.size() / 2);
    std::nth_element(measured.begin(), middle, measured.end(),
                     [](const auto& a, const auto& b) { return total_ms(a) < total_ms(b); });
    times.push_back({one.label(), step.op, total_ms(*middle), step.bytes, step.flops, *middle});
  }
  return times;
}

}  // namespace ref5d
