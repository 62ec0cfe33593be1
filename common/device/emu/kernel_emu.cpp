// The functions of kernel_emu.h, on the block that runs.
#include "common/device/emu/kernel_emu.h"

#include "common/device/emu/block.h"

namespace ref5d::emu {
namespace {

// Frames of the compiler's -fno-omit-frame-pointer: where the caller's lies, and the address to which it returns.
struct Frame {
  const Frame* caller;
  const void* returns_to;
};

// Of the call of the function whose frame this is.
Site site_of(const char* file, int number, const void* frame) {
  Site site{file, number, {}};
  const auto* f = static_cast<const Frame*>(frame);
  const std::uintptr_t begin = stack_begin(current_thread->self.thread), end = begin + kStackBytes - sizeof(Frame);
  for (std::uint32_t& call : site.calls) {
    const auto at = reinterpret_cast<std::uintptr_t>(f);
    if (at < begin || at > end) break;
    call = program_offset(reinterpret_cast<std::uintptr_t>(f->returns_to));
    f = f->caller;
  }
  return site;
}

KernelIndex index_of(const std::array<unsigned, 3>& i) { return {i[0], i[1], i[2]}; }

}  // namespace

KernelIndex thread_index() { return {current_thread->self.thread, 0, 0}; }
KernelIndex block_index() { return index_of(Block::current().index()); }
KernelIndex block_threads() { return {Block::current().launch().threads, 1, 1}; }
KernelIndex grid_blocks() { return index_of(Block::current().launch().grid); }

void barrier(const char* file, int line) { Block::current().barrier(site_of(file, line, __builtin_frame_address(0))); }

void warp_barrier(std::uint32_t mask, const char* file, int line) {
  Block::current().warp({.kind = WarpKind::kSync, .mask = mask}, site_of(file, line, __builtin_frame_address(0)));
}

std::uint32_t ballot(std::uint32_t mask, bool vote, const char* file, int line) {
  return static_cast<std::uint32_t>(Block::current().warp({.kind = WarpKind::kBallot, .mask = mask, .value = vote},
                                                          site_of(file, line, __builtin_frame_address(0))));
}

std::uint64_t shuffle(std::uint32_t mask, std::uint64_t value, int source, const char* file, int line) {
  return Block::current().warp({.kind = WarpKind::kShuffle, .mask = mask, .source = source, .value = value},
                               site_of(file, line, __builtin_frame_address(0)));
}

std::uint32_t active_lanes() { return Block::current().active_lanes(); }

void* shared_array(const void* tag, std::size_t bytes, std::size_t alignment) {
  return Block::current().shared_array(tag, bytes, alignment);
}
void* dynamic_shared_memory() { return Block::current().dynamic_shared(); }

}  // namespace ref5d::emu
