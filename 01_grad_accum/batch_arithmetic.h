// The arithmetic of batches.
#pragma once

#include <cstdint>

namespace ref5d::grad_accum {

// Sequences per optimizer step: micro-batch x accumulation steps x data-parallel replicas.
[[nodiscard]] std::int64_t global_batch_size(std::int64_t micro_batch, std::int64_t grad_accum, std::int64_t dp);
// Accumulation steps for a global batch of `tokens`. InputError if it does not come out even.
[[nodiscard]] std::int64_t accumulation_steps(std::int64_t tokens, std::int64_t seq, std::int64_t micro_batch, std::int64_t dp);

}  // namespace ref5d::grad_accum
