// Philox 4x32-10 (Salmon, Moraes, Dror and Shaw 2011): a keyed bijection of 128-bit counters whose outputs are random.
#pragma once

#include <cstdint>

#include "common/device/bf16.h"

namespace ref5d {

struct Uint4 {
  std::uint32_t x, y, z, w;
};

REF5D_HD inline Uint4 philox(std::uint64_t key, Uint4 c) {
  auto k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53u} * c.x, b = std::uint64_t{0xCD9E8D57u} * c.z;
    c = {static_cast<std::uint32_t>(b >> 32) ^ c.y ^ k0, static_cast<std::uint32_t>(b),
         static_cast<std::uint32_t>(a >> 32) ^ c.w ^ k1, static_cast<std::uint32_t>(a)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

}  // namespace ref5d
