#include "01_grad_accum/batch_arithmetic.h"

#include <fmt/format.h>

#include "common/device/error.h"

namespace ref5d::grad_accum {

std::int64_t global_batch_size(std::int64_t micro_batch, std::int64_t grad_accum, std::int64_t dp) {
  return micro_batch * grad_accum * dp;
}

std::int64_t accumulation_steps(std::int64_t tokens, std::int64_t seq, std::int64_t micro_batch, std::int64_t dp) {
  const std::int64_t at_once = seq * micro_batch * dp;
  if (tokens % at_once != 0) {
    throw InputError(
        fmt::format("{} tokens are no multiple of the {} that one micro-batch on every replica takes ({} x {} x {})", tokens,
                    at_once, seq, micro_batch, dp));
  }
  return tokens / at_once;
}

}  // namespace ref5d::grad_accum
