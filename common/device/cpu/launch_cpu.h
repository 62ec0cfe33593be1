// launch() on the CPU: a queue entry that runs the blocks, on several cores when the rank has them.
#pragma once

#include <tuple>
#include <utility>
#include <vector>

#include "common/device/cpu/executor.h"

namespace ref5d {

namespace cpu {
// Runs run_block() for every block index. Blocks are independent, so any distribution gives the same bits.
template <typename F>
void run_blocks(Grid grid, std::size_t shared_bytes, int threads, F&& run_block) {
  const long total = static_cast<long>(grid.x) * grid.y * grid.z;
  const long chunk = total / (threads * 8L) > 1 ? total / (threads * 8L) : 1;
#pragma omp parallel num_threads(threads) if (threads > 1 && total > 1)
  {
    grid_size = {grid.x, grid.y, grid.z};
    std::vector<std::byte> dynamic(shared_bytes ? shared_bytes + 64 : 0);
    void* aligned = dynamic.data();
    std::size_t space = dynamic.size();
    dynamic_shared_memory = shared_bytes ? static_cast<std::byte*>(std::align(64, shared_bytes, aligned, space)) : nullptr;
#pragma omp for schedule(dynamic, chunk)
    for (long b = 0; b < total; ++b) {
      block_index = {static_cast<unsigned>(b % grid.x), static_cast<unsigned>(b / grid.x % grid.y),
                     static_cast<unsigned>(b / (static_cast<long>(grid.x) * grid.y))};
      run_block();
    }
  }
}
}  // namespace cpu

template <auto kKernel, typename... Args>
void launch(Stream& stream, Grid grid, Block block, Args... args) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  cpu::enqueue(stream, detail::kernel_name<kKernel>(),
               [=] { cpu::run_blocks(grid, block.shared_bytes, cpu::kernel_threads(), [&] { kKernel(args...); }); });
}

}  // namespace ref5d
