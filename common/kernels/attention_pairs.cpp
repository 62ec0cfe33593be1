#include <algorithm>
#include <stdexcept>

#include "common/kernels/attention.h"

namespace ref5d {

// With a sequence's key orders sorted, a query's keys are those from its start up to its order.
std::int64_t visible_pairs(const std::vector<std::int32_t>& q_order, const std::vector<std::int32_t>& q_start,
                           const std::vector<std::int32_t>& k_order, std::int64_t batch) {
  const auto rows = static_cast<std::size_t>(batch);
  if (batch < 0 || q_start.size() != q_order.size() || (rows == 0 ? !q_order.empty() : q_order.size() % rows != 0) ||
      (rows == 0 ? !k_order.empty() : k_order.size() % rows != 0))
    throw std::logic_error("visible_pairs needs an order and a start per query, and as many tokens in each sequence");
  if (rows == 0) return 0;
  const std::size_t q_len = q_order.size() / rows, k_len = k_order.size() / rows;
  std::int64_t pairs = 0;
  std::vector<std::int32_t> keys;
  for (std::size_t b = 0; b < rows; ++b) {
    const auto first = k_order.begin() + static_cast<std::ptrdiff_t>(b * k_len);
    keys.assign(first, first + static_cast<std::ptrdiff_t>(k_len));
    std::sort(keys.begin(), keys.end());
    for (std::size_t i = b * q_len; i < (b + 1) * q_len; ++i) {
      const auto from = std::lower_bound(keys.begin(), keys.end(), q_start[i]);
      const auto to = std::upper_bound(keys.begin(), keys.end(), q_order[i]);
      pairs += std::max<std::ptrdiff_t>(0, to - from);
    }
  }
  return pairs;
}

}  // namespace ref5d
