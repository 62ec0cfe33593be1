// Counts the floating-point operations of matrix products and attention (a multiply and an add are two), by what they are for.
#pragma once

#include <array>
#include <cstdint>

namespace ref5d {

enum class FlopsKind {
  kBlockLinear,  // the linear layers of the blocks
  kHead,         // the projection to the vocabulary
  kExperts,      // the routed experts of the blocks; a router is a linear layer
  kAttention,    // scores and weighted sums of the pairs (query, key) that the mask lets see each other
  kCount
};
class FlopsLedger {
 public:
  void add(FlopsKind k, std::int64_t flops) { counts_[static_cast<int>(k)] += flops; }
  [[nodiscard]] std::int64_t count(FlopsKind k) const { return counts_[static_cast<int>(k)]; }
  [[nodiscard]] std::int64_t total() const {
    std::int64_t sum = 0;
    for (auto c : counts_) sum += c;
    return sum;
  }
  void reset() { counts_ = {}; }

 private:
  std::array<std::int64_t, static_cast<int>(FlopsKind::kCount)> counts_{};
};

}  // namespace ref5d
