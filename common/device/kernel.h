// The vocabulary that kernels are written in. A kernel includes this file and is plain CUDA C++; it never assumes how
// many threads run it, so the same source is compiled for every MODE (see common/docs/decisions.md): by nvcc for the GPU, by
// g++ with one thread per block and a warp of one, and by g++ with a GPU's geometry for the emulator (common/docs/emulator.md).
//
//   for (auto i : grid_range(n))      every index once over the whole grid; contiguous per block on the CPU
//   for (i = threadIdx.x; i < n; i += blockDim.x)   every index once over a block (vectorises on the CPU)
//   shared<T, N, kSlot>()             a shared array of N elements; one slot number per array of a kernel
//   dynamic_shared<T>()               the launch's dynamic shared memory
//   block_sum(v), block_max(v)        over the threads of a block; every thread gets the result
//   warp_sum(v), warp_max(v)          over a warp
//   block_size(n), grid_for(n)        launch sizes: n threads on a GPU, 1 on the CPU; blocks for n elements
//
// A new kernel gets a unit test (tests/unit/kernel_*_test.cpp), which runs in every mode, and a case in
// common/tools/kernel_cases_*.cpp, by which the emulator and a GPU are compared with the CPU (kernels --coverage finds a
// kernel that has none) and tests/mutate_barriers tries its barriers.
#pragma once

#include <cstdint>

#include "common/device/bf16.h"

#if defined(__CUDACC__)
#include "common/device/cuda/kernel_cuda.h"
#elif defined(REF5D_EMU)
#include "common/device/emu/kernel_emu.h"
#else
#include "common/device/cpu/kernel_cpu.h"
#endif

#include "common/device/kernel_reduce.h"
