// Counts every allocation by category. It counts when the host issues the allocation or the free, so the numbers do not
// depend on how far the host runs ahead of the device.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace ref5d {

enum class MemoryCategory {
  kParameters,               // weights in the model's dtype
  kGradients,                // gradients in the model's dtype
  kGradientAccumulation,     // fp32 sums of bf16 gradients
  kMaster,                   // fp32 copies of bf16 weights
  kOptimizer,                // Adam's moments
  kActivations,              // what forward keeps for backward, and what flows between layers
  kDeferredWeightGradients,  // inputs kept only for weight gradients that are computed later
  kCommunication,
  kWorkspace,
  kCount
};
inline constexpr int kMemoryCategories = static_cast<int>(MemoryCategory::kCount);
[[nodiscard]] const char* memory_category_name(MemoryCategory c);

class MemoryLedger {
 public:
  // Throws RunError if a cap is set and would be passed; counts nothing then.
  void add(MemoryCategory c, std::size_t bytes);
  void remove(MemoryCategory c, std::size_t bytes) noexcept;

  [[nodiscard]] std::int64_t current(MemoryCategory c) const { return current_[static_cast<int>(c)]; }
  [[nodiscard]] std::int64_t peak(MemoryCategory c) const { return peak_[static_cast<int>(c)]; }
  [[nodiscard]] std::int64_t total_current() const { return total_; }
  [[nodiscard]] std::int64_t total_peak() const { return total_peak_; }
  // Peaks start again from what is held now.
  void reset_peaks();
  // 0: none. In bytes over all categories.
  void set_cap(std::int64_t bytes) { cap_ = bytes; }

 private:
  std::array<std::int64_t, kMemoryCategories> current_{}, peak_{};
  std::int64_t total_ = 0, total_peak_ = 0, cap_ = 0;
};

}  // namespace ref5d
