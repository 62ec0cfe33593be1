// A sample of text from a byte-level model.
#pragma once

#include <string>

#include "common/train/trainer.h"

namespace ref5d {

// Continues `prompt` by `count` tokens, each drawn from softmax(logits / temperature) with counter-based random numbers,
// looking back at most the model's sequence length. Bytes that are not printable come out as '?'.
[[nodiscard]] std::string generate_text(Trainer& trainer, const std::string& prompt, std::int64_t count, double temperature,
                                        std::uint64_t seed);

}  // namespace ref5d
