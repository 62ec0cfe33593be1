// A CUDA kernel of one's own under the emulator: a template to copy.
//
//   make MODE=emu build/emu/emulate_my_kernel
//   build/emu/emulate_my_kernel            runs the kernel in ten orders of its threads and checks every result
//   build/emu/emulate_my_kernel --broken   the same without its barrier, and what the emulator says of that
//
// To bring another kernel, put it in place of this one (or beside it, in a file of its own: the Makefile builds each
// common/tools/emulate/NAME.cu as build/emu/emulate_NAME). Its body stays as it is, but for these:
//
//   CUDA                                         here
//   #include <cuda_runtime.h>                    #include "common/device/launch.h"
//   __shared__ float tile[32][33];               the same
//   extern __shared__ float rows[];              float* rows = dynamic_shared<float>();
//   dim3 block(32, 8); threadIdx.y               blocks have one dimension: 256 threads, threadIdx.x / 32. Grids may have
//   three.
//                                                (Block(32, 8) would be 32 threads and 8 bytes of dynamic shared memory)
//   kernel<<<grid, block, bytes, stream>>>(x)    launch<kernel>(stream, Grid(x, y, z), Block(threads, bytes), x)
//   cudaMalloc, cudaMemcpy                       Buffer, copy_to_device, copy_to_host
//   float4, __half, __device__ float table[8]    a struct of one's own, bf16 (common/device/bf16.h), memory that the host fills
//   cudaDeviceSynchronize()                      stream.synchronize()
//
// What is wrong is thrown at the host's next wait, as an EmulatorError: by synchronize or by copy_to_host.
//
// __syncthreads, __syncwarp, shuffles, votes and atomics of integers go by CUDA's names. There are no textures, no cooperative
// groups and no tensor cores, and a floating-point atomic is an error: its result would depend on the order of the threads.
#include <cstdio>
#include <cstring>
#include <exception>
#include <vector>

#include "common/device/device.h"
#include "common/device/emu/random.h"
#include "common/device/launch.h"
#include "common/device/memory.h"

using namespace ref5d;

namespace {

constexpr int kTile = 32, kThreads = 256;

// y[columns, rows] = x[rows, columns] transposed, one tile per block. A tile is read along the rows of x and written along the
// rows of y, so what a thread writes another one has read.
template <bool kBroken>
__global__ void transpose(float* __restrict__ y, const float* __restrict__ x, int rows, int columns) {
  __shared__ float tile[kTile][kTile + 1];
  const int row0 = static_cast<int>(blockIdx.y) * kTile, column0 = static_cast<int>(blockIdx.x) * kTile;
  const int lane = static_cast<int>(threadIdx.x) % kTile, first = static_cast<int>(threadIdx.x) / kTile;
  for (int r = first; r < kTile; r += kThreads / kTile) {
    if (row0 + r < rows && column0 + lane < columns) tile[r][lane] = x[(row0 + r) * columns + column0 + lane];
  }
  if (!kBroken) __syncthreads();
  for (int c = first; c < kTile; c += kThreads / kTile) {
    if (column0 + c < columns && row0 + lane < rows) y[(column0 + c) * rows + row0 + lane] = tile[lane][c];
  }
}

// Runs the kernel once. The number of wrong elements.
int wrong_elements(bool broken, int rows, int columns) {
  Stream& stream = device().compute();
  std::vector<float> x(static_cast<std::size_t>(rows * columns)), y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i);

  const std::size_t bytes = x.size() * sizeof(float);
  const Buffer from(bytes, MemoryCategory::kWorkspace, stream), to(bytes, MemoryCategory::kWorkspace, stream);
  auto* const device_x = reinterpret_cast<float*>(from.data());
  auto* const device_y = reinterpret_cast<float*>(to.data());
  copy_to_device(stream, from.data(), x.data(), bytes);
  const Grid grid(static_cast<unsigned>((columns + kTile - 1) / kTile), static_cast<unsigned>((rows + kTile - 1) / kTile));
  if (broken) {
    launch<transpose<true>>(stream, grid, kThreads, device_y, device_x, rows, columns);
  } else {
    launch<transpose<false>>(stream, grid, kThreads, device_y, device_x, rows, columns);
  }
  copy_to_host(stream, y.data(), to.data(), bytes);

  int wrong = 0;
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < columns; ++c) wrong += y.data()[c * rows + r] != x.data()[r * columns + c];
  }
  return wrong;
}

// Sizes that do not fill their last tile: a kernel's edges are where much goes wrong.
constexpr int kRows = 67, kColumns = 45;

int run(bool broken) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    emu::set_seed(seed);  // the order of the threads and the blocks; 0: as they are numbered
    if (const int wrong = wrong_elements(broken, kRows, kColumns); wrong > 0) {
      std::printf("seed %d: %d elements are wrong\n", static_cast<int>(seed), wrong);
      return 1;
    }
  }
  std::printf("right, and nothing to report, under 10 seeds\n");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const bool broken = argc == 2 && std::strcmp(argv[1], "--broken") == 0;
  if (argc > 1 && !broken) {
    std::fprintf(stderr, "usage: %s [--broken]\n", argv[0]);
    return 2;
  }
  try {
    return run(broken);
  } catch (const std::exception& e) {  // an EmulatorError, with the kernel, the thread and the line
    std::printf("%s\n", e.what());
    return 1;
  }
}
