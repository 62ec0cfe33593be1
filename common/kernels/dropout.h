// Dropout whose mask is a function of what it is applied to, not of who computes it: the random number of an element is keyed
// by (seed, step, global sample, global position, layer, site, channel). Recomputation and every parallel layout draw the same
// mask.
#pragma once

#include "common/tensor/tensor.h"

namespace ref5d {

enum class DropoutSite : std::uint32_t { kEmbedding, kAttention, kMlp };

struct DropoutKey {
  std::uint64_t seed = 0;
  std::uint32_t step = 0;
  std::uint32_t layer = 0;
  DropoutSite site = DropoutSite::kEmbedding;
};

// y [T, H] = x * mask / (1 - p), where mask is 1 with probability 1 - p. sample and order are int32 [T]: the global sample and
// the position in it of each row. y may be x's storage. Backward is the same function applied to dy.
// p = 0 copies. An element is kept if u >= p, where u = 2^-32 * r[channel % 4] and
// r = Philox(seed ^ (step << 32))(sample, order, channel / 4, layer | site << 24). Two pairs of seed and step never share a key
// as long as seeds are below 2^32. Throws std::logic_error unless 0 <= p <= 1 - 2^-32 and layer < 2^24.
void dropout(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& sample, const Tensor& order, const DropoutKey& key,
             double p);

}  // namespace ref5d
