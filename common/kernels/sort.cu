#include "common/device/launch.h"
#include "common/kernels/sort.h"

namespace ref5d {
namespace {

constexpr int kDigits = 256;
constexpr unsigned kSortThreads = 256;
constexpr std::int64_t kChunk = 1024;  // keys of one block

// Calls visit(index into the chunk's keys, place) for each key of the block's chunk, where place is where[digit] plus the
// number of equal digits before it in the chunk; afterwards where[digit] has grown by the chunk's count. The block takes as
// many keys at a time as it has threads, and a thread counts the equal digits before its own. No atomics: stable, and the
// same every time. `input` is the order so far (null: the keys' own order). `where` is shared memory and may be written
// just before: its first use here is behind a barrier. All threads of the block must call it.
template <typename Visit>
__device__ inline void rank_chunk(const std::int32_t* __restrict__ keys, const std::int32_t* __restrict__ input,
                                  std::int64_t count, int shift, std::int32_t* where, Visit visit) {
  int* digits = shared<int, kSortThreads, 0>();
  const std::int64_t begin = blockIdx.x * kChunk, end = min(count, begin + kChunk);
  for (std::int64_t tile = begin; tile < end; tile += blockDim.x) {
    const std::int64_t i = tile + threadIdx.x;
    const bool mine = i < end;
    const std::int32_t item = !mine ? 0 : input != nullptr ? input[i] : std::int32_t(i);
    const int digit = mine ? int(std::uint32_t(keys[item]) >> shift & (kDigits - 1)) : -1;
    digits[threadIdx.x] = digit;
    __syncthreads();
    std::int32_t before = 0, after = 0, place = 0;
    if (mine) {
      for (unsigned t = 0; t < threadIdx.x; ++t) before += digits[t] == digit;
      for (unsigned t = threadIdx.x + 1; t < blockDim.x; ++t) after += digits[t] == digit;
      place = where[digit] + before;
    }
    __syncthreads();                                   // everyone has read `digits` and `where`
    if (mine && after == 0) where[digit] = place + 1;  // the last of its digit
    if (mine) visit(item, place);
  }
}

// counts[chunk][digit]. One block per chunk.
__global__ void sort_count_kernel(std::int32_t* __restrict__ counts, const std::int32_t* __restrict__ keys,
                                  const std::int32_t* __restrict__ input, std::int64_t count, int shift) {
  std::int32_t* where = shared<std::int32_t, kDigits, 1>();
  for (unsigned d = threadIdx.x; d < kDigits; d += blockDim.x) where[d] = 0;
  rank_chunk(keys, input, count, shift, where, [](std::int32_t, std::int32_t) {});
  __syncthreads();
  for (unsigned d = threadIdx.x; d < kDigits; d += blockDim.x) counts[blockIdx.x * kDigits + d] = where[d];
}

// Turns counts into the first place of each (digit, chunk): everything with a smaller digit, then the same digit in earlier
// chunks. One block.
__global__ void sort_scan_kernel(std::int32_t* __restrict__ counts, std::int64_t chunks) {
  std::int32_t* totals = shared<std::int32_t, kDigits, 0>();
  for (unsigned d = threadIdx.x; d < kDigits; d += blockDim.x) {
    std::int32_t total = 0;
    for (std::int64_t c = 0; c < chunks; ++c) total += counts[c * kDigits + d];
    totals[d] = total;
  }
  __syncthreads();
  for (unsigned d = threadIdx.x; d < kDigits; d += blockDim.x) {
    std::int32_t place = 0;
    for (unsigned smaller = 0; smaller < d; ++smaller) place += totals[smaller];
    for (std::int64_t c = 0; c < chunks; ++c) {
      const std::int32_t n = counts[c * kDigits + d];
      counts[c * kDigits + d] = place;
      place += n;
    }
  }
}

// One block per chunk.
__global__ void sort_scatter_kernel(std::int32_t* __restrict__ output, const std::int32_t* __restrict__ places,
                                    const std::int32_t* __restrict__ keys, const std::int32_t* __restrict__ input,
                                    std::int64_t count, int shift) {
  std::int32_t* where = shared<std::int32_t, kDigits, 1>();
  for (unsigned d = threadIdx.x; d < kDigits; d += blockDim.x) where[d] = places[blockIdx.x * kDigits + d];
  rank_chunk(keys, input, count, shift, where, [=](std::int32_t item, std::int32_t place) { output[place] = item; });
}

}  // namespace

void stable_sort(Stream& stream, const Tensor& order, const Tensor& keys, std::int64_t limit) {
  const std::int64_t count = keys.numel();
  expect(keys, {count}, Dtype::kInt32, "stable_sort keys");
  expect(order, {count}, Dtype::kInt32, "stable_sort order");
  if (limit < 1 || limit > std::int64_t{1} << 31) {
    throw std::logic_error("stable_sort: the limit of the keys is " + std::to_string(limit) + ", not in 1..2^31");
  }
  int passes = 1;
  while ((limit - 1) >> (8 * passes) != 0) ++passes;
  const std::int64_t chunks = (count + kChunk - 1) / kChunk;
  const Tensor counts = Tensor::empty({chunks, kDigits}, Dtype::kInt32, MemoryCategory::kWorkspace, stream);
  const Tensor other = passes > 1 ? Tensor::empty({count}, Dtype::kInt32, MemoryCategory::kWorkspace, stream) : Tensor();
  const std::int32_t* input = nullptr;
  for (int pass = 0; pass < passes; ++pass) {  // the last pass writes to `order`
    std::int32_t* output = ((passes - 1 - pass) % 2 == 0 ? order : other).data<std::int32_t>();
    launch<sort_count_kernel>(stream, unsigned(chunks), block_size(kSortThreads), counts.data<std::int32_t>(),
                              keys.data<std::int32_t>(), input, count, 8 * pass);
    launch<sort_scan_kernel>(stream, 1, block_size(kSortThreads), counts.data<std::int32_t>(), chunks);
    launch<sort_scatter_kernel>(stream, unsigned(chunks), block_size(kSortThreads), output, counts.data<std::int32_t>(),
                                keys.data<std::int32_t>(), input, count, 8 * pass);
    input = output;
  }
}

}  // namespace ref5d
