// The emulator's source of disorder.
#pragma once

#include <cstdint>

namespace ref5d::emu {

// REF5D_EMU_SEED, or what set_seed() said last. 0: everything in order.
[[nodiscard]] std::uint64_t seed();
// From now on: the order of threads, blocks and streams. The same seed gives the same run.
void set_seed(std::uint64_t seed);
// For the launch that runs: by when it was enqueued, not by when it runs, which communication may decide.
[[nodiscard]] std::uint64_t draw_for_launch();

// splitmix64 (Steele, Lea and Flood 2014).
class Random {
 public:
  explicit Random(std::uint64_t state) : state_(state) {}
  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  // Of 0..n-1; n is below 2^32.
  std::uint64_t below(std::uint64_t n) { return (next() >> 32) * n >> 32; }

 private:
  std::uint64_t state_;
};

}  // namespace ref5d::emu
