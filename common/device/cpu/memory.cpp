// Stream-ordered allocation on the CPU. A freed block goes back to the pool of its own stream, where the next allocation
// may take it at once: whatever is enqueued later on that stream also runs later. Fresh pages cost more than most kernels,
// so blocks are kept.
#include "common/device/memory.h"

#include <sys/mman.h>

#include <bit>
#include <cstdlib>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/device/cpu/executor.h"
#include "common/device/device.h"
#include "common/device/error.h"

namespace ref5d {
namespace {

constexpr std::size_t kAlignment = 64, kHugePage = std::size_t{2} << 20;

// Sizes are rounded up to eight classes per power of two, so that a pool stays small and wastes at most an eighth.
std::size_t size_class(std::size_t bytes) {
  if (bytes <= 512) return (bytes + 63) / 64 * 64;
  const std::size_t step = std::bit_floor(bytes) / 8;
  return (bytes + step - 1) / step * step;
}

using Pool = std::unordered_map<std::size_t, std::vector<std::byte*>>;  // by size class

std::map<const Stream*, Pool>& pools() {
  static auto* const kPools = new std::map<const Stream*, Pool>;
  return *kPools;
}

void free_blocks(Pool& pool) {
  for (auto& [size, blocks] : pool) {
    for (std::byte* b : blocks) std::free(b);
  }
  pool.clear();
}

void release_all() {
  device().synchronize();
  for (auto& [stream, pool] : pools()) free_blocks(pool);
}

std::byte* fresh(std::size_t size) {
  const std::size_t alignment = size >= kHugePage ? kHugePage : kAlignment;
  const std::size_t rounded = (size + alignment - 1) / alignment * alignment;
  auto* data = static_cast<std::byte*>(std::aligned_alloc(alignment, rounded));
  if (data != nullptr && size >= kHugePage) madvise(data, rounded, MADV_HUGEPAGE);
  return data;
}

}  // namespace

void cpu::free_pool(const Stream& stream) {
  const auto pool = pools().find(&stream);
  if (pool == pools().end()) return;
  free_blocks(pool->second);
  pools().erase(pool);
}

namespace backend {

std::byte* allocate(std::size_t bytes, Stream& stream) {
  const std::size_t size = size_class(bytes);
  auto& blocks = pools()[&stream][size];
  if (!blocks.empty()) {
    std::byte* data = blocks.back();
    blocks.pop_back();
    return data;
  }
  std::byte* data = fresh(size);
  if (data == nullptr) {
    release_all();
    data = fresh(size);
  }
  if (data == nullptr)
    throw RunError("out of memory: the host has no " + std::to_string(bytes) + " bytes left; use a smaller model");
  return data;
}

void release(std::byte* data, std::size_t bytes, Stream& stream) noexcept {
  const auto pool = pools().find(&stream);
  if (pool == pools().end()) return std::free(data);  // the stream is gone, and its work is done
  pool->second[size_class(bytes)].push_back(data);
}

}  // namespace backend

PinnedBuffer::PinnedBuffer(std::size_t bytes) : data_(fresh(bytes + 1)), bytes_(bytes) {
  if (data_ == nullptr) throw RunError("out of memory: the host has no " + std::to_string(bytes) + " bytes left");
}
PinnedBuffer::~PinnedBuffer() { std::free(data_); }

}  // namespace ref5d
