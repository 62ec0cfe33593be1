// Mistakes in the use of memory.
#include <gtest/gtest.h>

#include "common/device/launch.h"
#include "tests/support/kernel_testing.h"
#include "tests/unit/emulator_faults.h"

namespace ref5d::testing {
namespace {

using emu::Fault;

constexpr std::int64_t kSize = 300;  // two blocks, the second one ragged

template <bool kFaulty>
__global__ void store(float* out, std::int64_t n) {
  const std::int64_t i = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x;
  if (kFaulty ? i <= n : i < n) out[i] = 1;
}

// One element of two bytes too many, within the last word of the allocation.
template <bool kFaulty>
__global__ void store_bf16(bf16* out, std::int64_t n) {
  const std::int64_t i = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x;
  if (kFaulty ? i <= n : i < n) out[i] = bf16(1.0f);
}

// The difference to the left neighbour.
template <bool kFaulty>
__global__ void differences(float* out, const float* x, std::int64_t n) {
  for (std::int64_t i : grid_range(n)) out[i] = kFaulty || i > 0 ? x[i] - x[i - 1] : x[i];
}

template <bool kFaulty>
__global__ void shared_neighbour(float* out) {
  float* row = shared<float, 64>();
  row[threadIdx.x] = 1;
  __syncthreads();
  out[threadIdx.x] = row[kFaulty || threadIdx.x + 1 < 64 ? threadIdx.x + 1 : threadIdx.x];
}

// The launch gives 64 floats.
template <bool kFaulty>
__global__ void dynamic_neighbour(float* out) {
  float* row = dynamic_shared<float>();
  row[threadIdx.x] = 1;
  if (kFaulty && threadIdx.x == 0) row[64] = 1;
  __syncthreads();
  out[threadIdx.x] = row[63 - threadIdx.x];
}

// A fresh accumulator is not zero.
template <bool kFaulty>
__global__ void accumulate(float* out, std::int64_t n) {
  for (std::int64_t i : grid_range(n)) {
    if (!kFaulty) out[i] = 0;
    for (int step = 0; step < 3; ++step) out[i] += 1;
  }
}

template <bool kFaulty>
__global__ void shared_sums(float* out) {
  float* sums = shared<float, 64>();
  if (!kFaulty || threadIdx.x != 63) sums[threadIdx.x] = 1;
  __syncthreads();
  out[threadIdx.x] = sums[63 - threadIdx.x];
}

// __shared__ as CUDA spells it.
template <bool kFaulty, int kSide>
__global__ void shared_variables(float* out) {
  __shared__ float tile[kSide][kSide + 1];
  __shared__ int counter;
  const unsigned row = threadIdx.x / kSide, column = threadIdx.x % kSide;
  if (threadIdx.x == 0) counter = 0;
  tile[row][column] = static_cast<float>(threadIdx.x);
  __syncthreads();
  atomicAdd(&counter, 1);
  const float turned = tile[column][row];
  if (!kFaulty) __syncthreads();
  tile[row][column] = static_cast<float>(counter);
  out[threadIdx.x] = turned - static_cast<float>(column * kSide + row) + tile[row][column];
}

// What the block before has left in shared memory.
template <bool kFaulty>
__global__ void left_in_a_variable(float* out) {
  __shared__ float kept;
  if (threadIdx.x == 0 && (!kFaulty || blockIdx.x == 0)) kept = 1;
  __syncthreads();
  out[blockIdx.x * blockDim.x + threadIdx.x] = kept;
}
template <bool kFaulty>
__global__ void left_by_another_block(float* out) {
  float* kept = shared<float, 1>();
  if (threadIdx.x == 0 && (!kFaulty || blockIdx.x == 0)) kept[0] = 1;
  __syncthreads();
  out[blockIdx.x * blockDim.x + threadIdx.x] = kept[0];
}

struct alignas(16) Four {
  float v[4];
};
// Four floats at a time, from rows that are not aligned to them.
template <bool kFaulty>
__global__ void vector_loads(float* out, const float* x, std::int64_t ld) {
  const float* row = x + threadIdx.x * ld;
  if (kFaulty || ld % 4 == 0) {
    *reinterpret_cast<Four*>(out + threadIdx.x * 4) = *reinterpret_cast<const Four*>(row);
  } else {
    for (int i = 0; i < 4; ++i) out[threadIdx.x * 4 + static_cast<unsigned>(i)] = row[i];
  }
}

// A shared array of floats promises the alignment of a float.
template <bool kFaulty>
__global__ void vector_stores(float* out, const float* x) {
  float* plain = shared<float, 64, 0>();
  Four* aligned = shared<Four, 16, 1>();
  Four* row = kFaulty ? reinterpret_cast<Four*>(plain) : aligned;
  row[threadIdx.x] = *reinterpret_cast<const Four*>(x);
  out[threadIdx.x] = row[threadIdx.x].v[0];
}

// All that the kernel does with x is to load its first element: a load that the compiler likes to move out of the kernel.
__global__ void broadcast(float* out, const float* x) { out[threadIdx.x] = x[0]; }

__global__ void add_one(float* out, std::int64_t n, const float* x) {
  for (std::int64_t i : grid_range(n)) out[i] = x[i] + 1;
}

// A thread's local variable is nobody else's.
template <bool kFaulty>
__global__ void locals_are_private(float* out) {
  float** where = shared<float*, 1>();
  float* values = shared<float, 1>();
  float local[4] = {1, 1, 1, 1};
  if (threadIdx.x == 0) {
    values[0] = 1;
    where[0] = kFaulty ? local : values;
  }
  __syncthreads();
  out[threadIdx.x] = where[0][0];
  __syncthreads();
}

template <bool kFaulty>
__global__ void float_atomic(float* out) {
  if (kFaulty) {
    atomicAdd(out, 1.0f);
  } else if (threadIdx.x == 0) {
    out[0] = out[0] + float(blockDim.x);
  }
}

__global__ void much_shared(float* out) {
  float* row = shared<float, 48 * 256 + 1>();
  row[0] = 1;
  out[0] = row[0];
}

Tensor fresh(std::int64_t n, Dtype dtype = Dtype::kFp32) {
  return Tensor::empty({n}, dtype, MemoryCategory::kWorkspace, stream());
}
Tensor ones(std::int64_t n) { return device_tensor(std::vector<double>(static_cast<std::size_t>(n), 1), {n}, Dtype::kFp32); }
void expect_all(const Tensor& t, double want) {
  for (double v : values_of(t)) ASSERT_EQ(v, want);
}
unsigned blocks(std::int64_t n) { return static_cast<unsigned>((n + 255) / 256); }

// The kernel writes `n` elements, in so many blocks of so many threads; all are `want`.
template <typename T = float, typename Kernels>
std::function<void(bool)> writes(std::int64_t n, double want, const Kernels& kernels) {
  return [=](bool faulty) {
    const Tensor out = fresh(n, std::is_same_v<T, bf16> ? Dtype::kBf16 : Dtype::kFp32);
    kernels(faulty, out.data<T>());
    stream().synchronize();
    if (!faulty) expect_all(out, want);
  };
}

void run_on_a_freed_buffer(bool faulty) {
  const Tensor out = fresh(kSize);
  Tensor x = ones(kSize);
  const float* data = x.data<float>();
  if (faulty) x = Tensor();
  launch<add_one>(stream(), 2, 64, out.data<float>(), kSize, data);
  stream().synchronize();
  if (!faulty) expect_all(out, 2);
}

void run_on_host_memory(bool faulty) {
  const Tensor out = fresh(kSize), x = ones(kSize);
  const std::vector<float> host(kSize, 1.0f);
  launch<add_one>(stream(), 2, 64, out.data<float>(), kSize, faulty ? host.data() : x.data<float>());
  stream().synchronize();
  if (!faulty) expect_all(out, 2);
}

void run_on_the_null_pointer(bool faulty) {
  const Tensor out = fresh(kSize), x = ones(kSize);
  launch<add_one>(stream(), 2, 64, out.data<float>(), kSize, faulty ? nullptr : x.data<float>());
  stream().synchronize();
  if (!faulty) expect_all(out, 2);
}

void run_copy_of_what_nobody_wrote(bool faulty) {
  const Tensor x = fresh(kSize), y = fresh(kSize);
  fill_zero(stream(), x.raw(), kSize * 4 - (faulty ? 4 : 0));
  copy_on_device(stream(), y.raw(), x.raw(), kSize * 4);
  stream().synchronize();
  if (!faulty) expect_all(y, 0);
}

void run_copy_to_host_of_what_nobody_wrote(bool faulty) {
  const Tensor x = fresh(kSize);
  fill_zero(stream(), x.raw(), kSize * 4 - (faulty ? 4 : 0));
  std::vector<float> host(kSize);
  copy_to_host(stream(), host.data(), x.raw(), kSize * 4);
}

void run_fill_too_far(bool faulty) {
  const Tensor x = fresh(kSize);
  fill_zero(stream(), x.raw(), kSize * 4 + (faulty ? 1 : 0));
  stream().synchronize();
}

}  // namespace

// One macro for a kernel and its twin.
#define REF5D_TWINS(kernel, grid, block, ...)                                              \
  [](bool faulty, auto* out) {                                                             \
    faulty ? launch<kernel<true>>(stream(), grid, block, out __VA_OPT__(, ) __VA_ARGS__)   \
           : launch<kernel<false>>(stream(), grid, block, out __VA_OPT__(, ) __VA_ARGS__); \
  }

std::vector<PlantedFault> faults_of_memory() {
  const std::string line = "emulator_faults_memory_emu.cu:";
  std::vector<PlantedFault> all = {
      {"OffByOneStore", Fault::kOutOfBounds, "at byte 1200 of a buffer of 1200 bytes at tests/unit/" + line,
       writes(kSize, 1, REF5D_TWINS(store, blocks(kSize + 1), 256, kSize))},
      {"OffByOneInTheLastWord", Fault::kOutOfBounds, "at byte 602 of a buffer of 602 bytes",
       writes<bf16>(kSize + 1, 1, REF5D_TWINS(store_bf16, blocks(kSize + 2), 256, kSize + 1))},
      {"SharedNeighbour", Fault::kOutOfBounds, line, writes(64, 1, REF5D_TWINS(shared_neighbour, 1, 64))},
      {"DynamicNeighbour", Fault::kOutOfBounds, line, writes(64, 1, REF5D_TWINS(dynamic_neighbour, 1, Block(64, 256)))},
      {"UninitializedAccumulator", Fault::kUninitialized, line, writes(kSize, 3, REF5D_TWINS(accumulate, 2, 64, kSize))},
      {"UninitializedSharedMemory", Fault::kUninitialized, line, writes(64, 1, REF5D_TWINS(shared_sums, 1, 64))},
      {"LeftByAnotherBlock", Fault::kUninitialized, line, writes(128, 1, REF5D_TWINS(left_by_another_block, 2, 64))},
      {"LeftInASharedVariable", Fault::kUninitialized, "of shared memory at tests/unit/" + line,
       writes(128, 1, REF5D_TWINS(left_in_a_variable, 2, 64))},
      {"LocalsOfAnotherThread", Fault::kOtherStack, line, writes(64, 1, REF5D_TWINS(locals_are_private, 1, 64))},
      {"UseAfterFree", Fault::kUseAfterFree, "add_one", run_on_a_freed_buffer},
      {"HostMemory", Fault::kHostMemory, "at an address of the host", run_on_host_memory},
      {"NullPointer", Fault::kHostMemory, "at the null pointer", run_on_the_null_pointer},
      {"CopyOfWhatNobodyWrote", Fault::kUninitialized, "in copy: reads", run_copy_of_what_nobody_wrote},
      {"CopyToHostOfWhatNobodyWrote", Fault::kUninitialized, "in copy to host: reads", run_copy_to_host_of_what_nobody_wrote},
      {"FillTooFar", Fault::kOutOfBounds, "in fill zero: writes", run_fill_too_far},
  };
  all.push_back({"ReadBeforeTheFirst", Fault::kOutOfBounds, "4 bytes 4 before a buffer of 1200 bytes at", [](bool faulty) {
                   const Tensor out = fresh(kSize), x = ones(kSize);
                   faulty ? launch<differences<true>>(stream(), 2, 64, out.data<float>(), x.data<float>(), kSize)
                          : launch<differences<false>>(stream(), 2, 64, out.data<float>(), x.data<float>(), kSize);
                   stream().synchronize();
                 }});
  all.push_back({"RacyVariables", Fault::kRace, line, [](bool faulty) {
                   const Tensor out = fresh(64);
                   faulty ? launch<shared_variables<true, 8>>(stream(), 1, 64, out.data<float>())
                          : launch<shared_variables<false, 8>>(stream(), 1, 64, out.data<float>());
                   stream().synchronize();
                   if (!faulty) expect_all(out, 64);
                 }});
  all.push_back({"MisalignedLoads", Fault::kMisaligned, line, [](bool faulty) {
                   const Tensor out = fresh(64), x = ones(16 * 5);
                   faulty ? launch<vector_loads<true>>(stream(), 1, 16, out.data<float>(), x.data<float>(), std::int64_t{5})
                          : launch<vector_loads<false>>(stream(), 1, 16, out.data<float>(), x.data<float>(), std::int64_t{5});
                   stream().synchronize();
                   if (!faulty) expect_all(out, 1);
                 }});
  all.push_back({"MisalignedStores", Fault::kMisaligned, line, [](bool faulty) {
                   const Tensor out = fresh(16), x = ones(4);
                   faulty ? launch<vector_stores<true>>(stream(), 1, 16, out.data<float>(), x.data<float>())
                          : launch<vector_stores<false>>(stream(), 1, 16, out.data<float>(), x.data<float>());
                   stream().synchronize();
                   if (!faulty) expect_all(out, 1);
                 }});
  all.push_back({"FloatAtomic", Fault::kFloatAtomic, line, [](bool faulty) {
                   const Tensor sum = ones(1);
                   faulty ? launch<float_atomic<true>>(stream(), 1, 64, sum.data<float>())
                          : launch<float_atomic<false>>(stream(), 1, 64, sum.data<float>());
                   stream().synchronize();
                   if (!faulty) expect_all(sum, 65);
                 }});
  all.push_back({"BroadcastOfWhatNobodyWrote", Fault::kUninitialized, line, [](bool faulty) {
                   const Tensor out = fresh(64), x = faulty ? fresh(1) : ones(1);
                   launch<broadcast>(stream(), 1, 64, out.data<float>(), x.data<float>());
                   stream().synchronize();
                   if (!faulty) expect_all(out, 1);
                 }});
  all.push_back({"CopyBeyondTheHostsMemory", Fault::kOutOfBounds, "of the host's memory", [](bool faulty) {
                   const Tensor x = ones(100);
                   std::vector<float> host(faulty ? 90 : 100);
                   copy_to_host(stream(), host.data(), x.raw(), 400);
                 }});
  all.push_back({"TooMuchSharedMemory", Fault::kResources, "a GPU has 49152 for arrays of fixed size", [](bool faulty) {
                   const Tensor out = fresh(1);
                   faulty ? launch<much_shared>(stream(), 1, 32, out.data<float>())
                          : launch<store<false>>(stream(), 1, 32, out.data<float>(), std::int64_t{1});
                   stream().synchronize();
                 }});
  all.push_back({"TooMuchDynamicSharedMemory", Fault::kResources, "every GPU since sm_80 has 101376", [](bool faulty) {
                   const Tensor out = fresh(64);
                   launch<dynamic_neighbour<false>>(stream(), 1, Block(64, 101376 + (faulty ? 1 : 0)), out.data<float>());
                   stream().synchronize();
                 }});
  all.push_back({"TooManyThreads", Fault::kResources, "1025 threads", [](bool faulty) {
                   const Tensor out = fresh(1025);
                   launch<store<false>>(stream(), faulty ? 1 : 2, faulty ? 1025 : 1024, out.data<float>(), std::int64_t{1025});
                   stream().synchronize();
                   if (!faulty) expect_all(out, 1);
                 }});
  return all;
}

}  // namespace ref5d::testing
