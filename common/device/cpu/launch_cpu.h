// launch() on the CPU: a queue entry that runs the blocks, on several cores when the rank has them.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "common/device/cpu/executor.h"

namespace ref5d {

namespace cpu {

// What a thread needs to run blocks of one launch: the grid's size and its own dynamic shared memory.
class BlockRunner {
 public:
  BlockRunner(Grid grid, std::size_t shared_bytes) : grid_(grid), storage_(shared_bytes ? shared_bytes + 64 : 0) {
    grid_size = {grid.x, grid.y, grid.z};
    void* aligned = storage_.data();
    std::size_t space = storage_.size();
    dynamic_shared_memory = shared_bytes ? static_cast<std::byte*>(std::align(64, shared_bytes, aligned, space)) : nullptr;
  }
  template <typename F>
  void run(long b, F&& block) const {
    block_index = {static_cast<unsigned>(b % grid_.x), static_cast<unsigned>(b / grid_.x % grid_.y),
                   static_cast<unsigned>(b / (static_cast<long>(grid_.x) * grid_.y))};
    block();
  }

 private:
  Grid grid_;
  std::vector<std::byte> storage_;
};

// Waking another core costs some 10 us, more than many small kernels take: blocks run here until that much time has passed.
inline constexpr auto kWorthSharing = std::chrono::microseconds(20);

// Runs block() for every block index. Blocks are independent, so any distribution gives the same bits.
template <typename F>
void run_blocks(Grid grid, std::size_t shared_bytes, int threads, F&& block) {
  const long total = static_cast<long>(grid.x) * grid.y * grid.z;
  const BlockRunner here(grid, shared_bytes);
  long b = 0;
  if (threads == 1) {
    for (; b < total; ++b) here.run(b, block);
    return;
  }
  const auto begin = std::chrono::steady_clock::now();
  for (; b < total; ++b) {
    if (std::chrono::steady_clock::now() - begin > kWorthSharing) break;
    here.run(b, block);
  }
  if (b == total) return;
  const long chunk = std::max(1L, (total - b) / (threads * 8L));
  std::atomic<long> next = b;
  RegionError error;
#pragma omp parallel num_threads(threads)
  error.guard([&] {
    const BlockRunner runner(grid, shared_bytes);
    for (long first; (first = next.fetch_add(chunk)) < total;)
      for (long i = first; i < std::min(total, first + chunk); ++i) runner.run(i, block);
  });
  error.rethrow();
}

}  // namespace cpu

template <auto kKernel, typename... Args>
void launch(Stream& stream, Grid grid, Block block, Args... args) {
  if (!detail::has_blocks<kKernel>(grid)) return;
  cpu::enqueue(stream, detail::kernel_name<kKernel>(),
               [=] { cpu::run_blocks(grid, block.shared_bytes, cpu::kernel_threads(), [&] { kKernel(args...); }); });
}

}  // namespace ref5d
