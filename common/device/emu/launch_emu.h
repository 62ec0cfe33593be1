// launch() under the emulator.
#pragma once

#include <tuple>
#include <utility>

#include "common/device/cpu/executor.h"
#include "common/device/emu/block.h"

namespace ref5d {

namespace emu {

// Passes a kernel its arguments as a GPU would: by value, from memory that is not the kernel's own.
template <auto kKernel, typename Args>
[[gnu::no_sanitize_thread]] void call_kernel(const void* args) {
  [&]<std::size_t... kIndex>(std::index_sequence<kIndex...>) __attribute__((no_sanitize_thread)) {
    kKernel(std::get<kIndex>(*static_cast<const Args*>(args))...);
  }
  (std::make_index_sequence<std::tuple_size_v<Args>>());
}

}  // namespace emu

template <auto kKernel, typename... Args>
void launch(Stream& stream, Grid grid, Block block, Args... args) {
  if (!detail::has_blocks<kKernel>(grid)) return;
  const std::string& name = detail::kernel_name<kKernel>();
  using Tuple = std::tuple<Args...>;
  const auto describe = [&name, grid, block](const void* arguments) -> emu::Launch {
    return {&name, {grid.x, grid.y, grid.z}, block.threads, block.shared_bytes, emu::call_kernel<kKernel, Tuple>, arguments};
  };
  emu::check_resources(describe(nullptr));
  cpu::enqueue(stream, name, [describe, arguments = Tuple(args...)] { emu::run_kernel(describe(&arguments)); });
}

}  // namespace ref5d
