// How long each operation's kernels take, beside what the machine's memory and multipliers would need for the same work.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "common/device/profiler.h"
#include "common/tools/kernel_cases.h"

namespace ref5d {

// What this machine reaches at the moment, measured: reading and writing a large array, and the library's product of two large
// square matrices in one dtype.
struct MachineRates {
  double bytes_per_s = 0, flops_per_s = 0;
};
[[nodiscard]] MachineRates measure_rates(Dtype dtype);

struct StepTime {
  std::string label, op;  // "rmsnorm/4096x1024/fp32", "rmsnorm_forward"
  double ms = 0;          // of its kernels, without the time between them: the median of the rounds
  double bytes = 0, flops = 0;
  std::map<std::string, Profiler::Total> kernels;  // in one round: the median's

  [[nodiscard]] double memory_ms(const MachineRates& rates) const { return bytes / rates.bytes_per_s * 1e3; }
  [[nodiscard]] double flops_ms(const MachineRates& rates) const { return flops / rates.flops_per_s * 1e3; }
  [[nodiscard]] bool bound_by_flops(const MachineRates& rates) const { return flops_ms(rates) > memory_ms(rates); }
  // The greater of the two: no kernel could be faster.
  [[nodiscard]] double bound_ms(const MachineRates& rates) const { return std::max(memory_ms(rates), flops_ms(rates)); }
};

// Each step of the case: once to warm up, then `rounds` times; cold: each time with caches that hold none of its tensors.
[[nodiscard]] std::vector<StepTime> time_case(const KernelCase& one, int rounds, bool cold);

}  // namespace ref5d
