#include "common/device/memory_ledger.h"

#include <algorithm>
#include <string>

#include "common/device/error.h"

namespace ref5d {

const char* memory_category_name(MemoryCategory c) {
  static constexpr const char* kNames[] = {"parameters", "gradients",   "gradient accumulation",     "master",
                                           "optimizer",  "activations", "deferred weight gradients", "communication",
                                           "workspace"};
  return kNames[static_cast<int>(c)];
}

void MemoryLedger::add(MemoryCategory c, std::size_t bytes) {
  const auto n = static_cast<std::int64_t>(bytes);
  if (cap_ > 0 && total_ + n > cap_) {
    throw RunError("out of device memory: " + std::to_string(n) + " more bytes for " + memory_category_name(c) +
                   " pass the cap of " + std::to_string(cap_) + " (" + std::to_string(total_) +
                   " in use); use a smaller model or micro-batch, more ranks, or a larger cap");
  }
  auto& current = current_[static_cast<int>(c)];
  auto& peak = peak_[static_cast<int>(c)];
  current += n;
  total_ += n;
  peak = std::max(peak, current);
  total_peak_ = std::max(total_peak_, total_);
}

void MemoryLedger::remove(MemoryCategory c, std::size_t bytes) noexcept {
  current_[static_cast<int>(c)] -= static_cast<std::int64_t>(bytes);
  total_ -= static_cast<std::int64_t>(bytes);
}

void MemoryLedger::reset_peaks() {
  peak_ = current_;
  total_peak_ = total_;
}

}  // namespace ref5d
