// Who touches memory, and when. Two accesses are compared by these fields alone.
#pragma once

#include <cstdint>

namespace ref5d::emu {

using TaskId = std::uint32_t;  // of a piece of work on a stream, numbered as enqueued; 0: none

struct Access {
  TaskId task = 0;                 // 0: nobody
  std::uint32_t block = 0;         // of the task's grid, linear
  std::uint32_t pc = 0;            // where in the program, from its first byte; 0: not in a kernel
  std::uint32_t barrier : 22 = 0;  // block barriers passed
  std::uint32_t thread : 10 = 0;
  std::uint32_t warp_step : 31 = 0;  // warp barriers passed
  std::uint32_t atomic : 1 = 0;
};
inline constexpr std::uint32_t kMaxBarriers = (1u << 22) - 1, kMaxThreads = 1024, kWarp = 32;

// Whether `a`, which ran earlier, comes before `b` under every order of one block's threads. Both are of one block.
[[nodiscard]] inline bool ordered_in_block(const Access& a, const Access& b) {
  if (a.thread == b.thread || a.barrier < b.barrier) return true;
  return a.thread / kWarp == b.thread / kWarp && a.warp_step < b.warp_step;
}

}  // namespace ref5d::emu
