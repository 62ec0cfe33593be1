#include <fmt/core.h>

#include "01_grad_accum/batch_arithmetic.h"
#include "01_grad_accum/experiments.h"
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

void batch_experiment(const Options& options, Verdict& verdict) {
  verdict.claim(
      make_claim("batch: 4 sequences x 8 micro-batches", 32, static_cast<double>(global_batch_size(4, 8, 1)), 0, "sequences"));
  // "4M tokens" is 4 x 2^20 where the sequence is 4096.
  constexpr std::int64_t kTokens = std::int64_t{4} << 20, kSeq = 4096;
  verdict.claim(make_claim("batch: 4M tokens of sequences of 4k", 1024, static_cast<double>(kTokens / kSeq), 0, "sequences"));
  for (const auto& [gpus, expected] : {std::pair{std::int64_t{128}, 4}, {std::int64_t{512}, 1}}) {
    const std::int64_t steps = accumulation_steps(kTokens, kSeq, 2, gpus);
    verdict.claim(make_claim(fmt::format("batch: grad_accum for 4M tokens on {} GPUs, 2 sequences each", gpus), expected,
                             static_cast<double>(steps)));
    verdict.claim(make_claim(fmt::format("batch: 2 x grad_accum x {} again", gpus), 1024,
                             static_cast<double>(global_batch_size(2, steps, gpus)), 0, "sequences"));
  }
  if (options.quiet) return;
  fmt::print("\nBatch arithmetic: global batch = micro-batch x grad_accum x dp\n");
  fmt::print("  {:>6} {:>12} {:>11}\n", "GPUs", "micro-batch", "grad_accum");
  for (std::int64_t gpus = 64; gpus <= 512; gpus *= 2)
    fmt::print("  {:>6} {:>12} {:>11}\n", gpus, 2, accumulation_steps(kTokens, kSeq, 2, gpus));
}

}  // namespace ref5d::grad_accum
