// launch() on the GPU: the only place with a <<<>>>.
#pragma once

#include <cuda_runtime.h>

#include "common/device/cuda/cuda_stream.h"

namespace ref5d {

template <auto kKernel, typename... Args>
void launch(Stream& stream, Grid grid, Block block, Args... args) {
  if (!detail::has_blocks<kKernel>(grid)) return;
  if (block.shared_bytes > 48 * 1024) cuda::allow_shared_bytes(reinterpret_cast<const void*>(kKernel), block.shared_bytes);
  const cuda::ProfileScope profile(stream, detail::kernel_name<kKernel>());
  kKernel<<<dim3(grid.x, grid.y, grid.z), block.threads, block.shared_bytes, cuda::native(stream)>>>(args...);
  cuda::check(cudaGetLastError(), detail::kernel_name<kKernel>().c_str());
}

}  // namespace ref5d
