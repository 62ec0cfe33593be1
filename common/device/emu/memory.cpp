// Stream-ordered allocation under the emulator. Every allocation has addresses of its own, with room around it that belongs to
// nobody; freed ones are kept for a while before anybody gets their addresses again. A free is work on its stream: what comes
// later on the stream must not touch the memory, and what other streams do with it must be ordered before.
#include "common/device/memory.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <iterator>
#include <map>
#include <utility>

#include "common/device/cpu/executor.h"
#include "common/device/device.h"
#include "common/device/emu/block.h"
#include "common/device/emu/memory_map.h"
#include "common/device/emu/observe.h"
#include "common/device/emu/shared_variables.h"

#ifdef REF5D_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace ref5d {
namespace emu {
namespace {

constexpr std::size_t kAlignment = 256, kMargin = 256;  // the GPU's allocations are aligned like this, and no better
constexpr std::size_t kFilled = 1 << 20;                // larger ones keep what they find
constexpr std::size_t kQuarantine = 16;                 // freed allocations of a size that nobody gets yet

// With the margin, in eight classes per power of two: what is freed fits what comes later.
std::size_t room_for(std::size_t bytes) {
  const std::size_t step = std::max(kAlignment, std::bit_floor(bytes + kMargin) / 8);
  return (bytes + kMargin + step - 1) / step * step;
}

// The host's code must not touch device memory itself: on a GPU it could not.
void keep_host_from([[maybe_unused]] void* at, [[maybe_unused]] std::size_t bytes) {
#ifdef REF5D_ASAN
  __asan_poison_memory_region(at, bytes);
#endif
}
void allow_host([[maybe_unused]] void* at, [[maybe_unused]] std::size_t bytes) {
#ifdef REF5D_ASAN
  __asan_unpoison_memory_region(at, bytes);
#endif
}

struct Allocation {
  std::size_t bytes;
  TaskId task;  // that stands for the allocation in its stream's order
  bool freed;
};

struct Heap {
  std::uint64_t version = 1;  // changes with every allocation
  std::uintptr_t end = kMemory + kSharedBytes;
  std::map<std::uintptr_t, Allocation> all;                 // by address
  std::map<std::size_t, std::deque<std::uintptr_t>> freed;  // by room, in the order in which they were freed

  std::uintptr_t take(std::size_t room) {
    ++version;
    const bool full = room > kMemory + kMemoryBytes - end;
    // Once all addresses have been given out, any freed allocation that is large enough.
    const auto from = freed.lower_bound(room), to = full ? freed.end() : freed.upper_bound(room);
    for (auto queue = from; queue != to; ++queue) {
      if (queue->second.size() <= (full ? 0 : kQuarantine)) continue;
      const std::uintptr_t at = queue->second.front();
      queue->second.pop_front();
      mark_gone(at, queue->first, kNobodys);  // it may have been larger
      return at;
    }
    if (full) throw RunError("out of memory: the emulator has 16 GiB of device memory; use a smaller model");
    end += room;
    return end - room;
  }
};

Heap& heap() {
  static Heap* const kHeap = [] {
    reserve_memory();
    return new Heap;
  }();
  return *kHeap;
}

void free_now(std::uintptr_t at, std::size_t bytes) {
  BadAccess bad;
  bad.self = {.task = running().id};
  bad.fault = check_free(at, bytes, bad.self, bad);
  mark_gone(at, bytes, kFreed);
  heap().freed[room_for(bytes)].push_back(at);
  const struct Freed {  // at the end: what is thrown tells of it as it was
    Allocation& allocation;
    ~Freed() { allocation.freed = true; }
  } freed{heap().all[at]};
  bad.address = at, bad.bytes = bytes, bad.writes = true;
  if (bad.fault != Fault::kNone) throw_bad_access(bad);
}

// The allocation at or before an address; null if there is none.
const std::pair<const std::uintptr_t, Allocation>* allocation_at(std::uintptr_t address) {
  const auto after = heap().all.upper_bound(address);
  return after == heap().all.begin() ? nullptr : &*std::prev(after);
}

}  // namespace

TaskId allocated_by(std::uintptr_t address) {
  // Neighbouring words follow each other.
  static std::uintptr_t begin = 0, bytes = 0;
  static TaskId task = 0;
  static std::uint64_t version = 0;
  if (version != heap().version || address - begin >= bytes) {
    const auto* found = allocation_at(address);
    if (found == nullptr) return 0;
    begin = found->first, bytes = found->second.bytes, task = found->second.task, version = heap().version;
  }
  return task;
}

std::string describe_memory(std::uintptr_t address) {
  if (address - kMemory < kSharedBytes || shared_variable(address) != 0) return "of shared memory";
  if (address - kMemory >= kMemoryBytes) return address < 4096 ? "at the null pointer" : "at an address of the host";
  // In the room between two allocations, the nearer one is meant.
  const auto& all = heap().all;
  const auto next = all.upper_bound(address);
  const auto* const here = allocation_at(address);
  const std::uintptr_t past = here == nullptr ? SIZE_MAX : address - here->first;
  if (next != all.end() && (here == nullptr || past >= here->second.bytes) &&
      next->first - address < (here == nullptr ? SIZE_MAX : past - here->second.bytes + 1))
    return fmt::format("{} before a buffer of {} bytes", next->first - address, next->second.bytes);
  if (here == nullptr) return "at an address that nobody has allocated";
  return fmt::format("at byte {} of a buffer of {} bytes{}", past, here->second.bytes,
                     here->second.freed ? " that has been freed" : "");
}

}  // namespace emu

namespace backend {

std::byte* allocate(std::size_t bytes, Stream& stream) {
  const std::uintptr_t at = emu::heap().take(emu::room_for(bytes));
  emu::mark_live(at, bytes);
  emu::heap().all[at] = {bytes, cpu::allocation_task(stream).id, false};
  auto* const data = reinterpret_cast<std::byte*>(at);
  emu::allow_host(data, bytes);
  if (bytes <= emu::kFilled) std::memset(data, 0xff, bytes);  // NaN, and -1
  emu::keep_host_from(data, bytes);
  return data;
}

void release(std::byte* data, std::size_t bytes, Stream& stream) noexcept {
  const auto at = reinterpret_cast<std::uintptr_t>(data);
  if (cpu::exists(stream)) {
    cpu::enqueue_free(stream, [at, bytes] { emu::free_now(at, bytes); });
  } else {
    cpu::keep_errors_of([&] { emu::run_on_host(emu::kFree, [&] { emu::free_now(at, bytes); }); });
  }
}

}  // namespace backend

void cpu::free_pool(const Stream&) {}

PinnedBuffer::PinnedBuffer(std::size_t bytes) : data_(static_cast<std::byte*>(std::malloc(bytes + 1))), bytes_(bytes) {
  if (data_ == nullptr) throw RunError("out of memory: the host has no " + std::to_string(bytes) + " bytes left");
}
PinnedBuffer::~PinnedBuffer() { std::free(data_); }

}  // namespace ref5d
