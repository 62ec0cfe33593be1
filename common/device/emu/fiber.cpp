#include "common/device/emu/fiber.h"

#include <sys/mman.h>

#include <array>
#include <csignal>

#include "common/device/emu/access.h"
#include "common/device/error.h"

#ifdef REF5D_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

namespace ref5d::emu {
namespace {

using boost::context::detail::jump_fcontext;
using boost::context::detail::make_fcontext;
using boost::context::detail::transfer_t;

std::uintptr_t stacks() {
  static const std::uintptr_t kStacks = [] {
    void* const at =
        mmap(nullptr, kMaxThreads * kStackPitch, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) throw RunError("the emulator has no memory for the stacks of a block's threads");
    for (unsigned i = 0; i < kMaxThreads; ++i) mprotect(static_cast<std::byte*>(at) + i * kStackPitch, 4096, PROT_NONE);
    return reinterpret_cast<std::uintptr_t>(at);
  }();
  return kStacks;
}

void before_switch([[maybe_unused]] void** fake_stack, [[maybe_unused]] const Fiber& to) {
#ifdef REF5D_ASAN
  __sanitizer_start_switch_fiber(fake_stack, to.bottom, to.size);
#endif
}
// Whoever switched here is kept where it stopped.
void after_switch([[maybe_unused]] void* fake_stack, transfer_t from) {
  Fiber& last = *static_cast<Fiber*>(from.data);
  last.context = from.fctx;
#ifdef REF5D_ASAN
  __sanitizer_finish_switch_fiber(fake_stack, &last.bottom, &last.size);
#endif
}

void (*entry_of_all)() = nullptr;

void begin(transfer_t from) {
  after_switch(nullptr, from);
  entry_of_all();
}

void (*overflow_handler)() = nullptr;

// A store beyond the stack hits the page that nobody may touch.
void on_segv(int signal, siginfo_t* info, void*) {
  if (overflow_handler != nullptr && in_stacks(reinterpret_cast<std::uintptr_t>(info->si_addr))) overflow_handler();
  std::signal(signal, SIG_DFL);  // it happens again on return, and ends the program
}

}  // namespace

void on_stack_overflow(void (*handler)()) {
  overflow_handler = handler;
  static std::array<std::byte, 256 * 1024> stack;
  const stack_t other{.ss_sp = stack.data(), .ss_flags = 0, .ss_size = stack.size()};
  sigaltstack(&other, nullptr);
  struct sigaction action {};
  action.sa_sigaction = on_segv;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(SIGSEGV, &action, nullptr);
}

std::uintptr_t stack_begin(unsigned index) { return stacks() + index * kStackPitch + 4096; }
bool in_stacks(std::uintptr_t address) { return address - stacks() < kMaxThreads * kStackPitch; }

void prepare(Fiber& fiber, unsigned index, void (*entry)()) {
  entry_of_all = entry;
  const std::uintptr_t lowest = stack_begin(index);
  // Tops at different lines of the cache, or all stacks would share the same few sets.
  const std::size_t size = kStackBytes - index % 64 * 64;
  fiber.bottom = reinterpret_cast<const void*>(lowest);
  fiber.size = size;
  fiber.fake_stack = nullptr;
  fiber.context = make_fcontext(reinterpret_cast<void*>(lowest + size), size, begin);
}

void switch_to(Fiber& from, Fiber& to) {
  before_switch(&from.fake_stack, to);
  const transfer_t back = jump_fcontext(to.context, &from);
  after_switch(from.fake_stack, back);
}

void leave(Fiber& from, Fiber& to) {
  before_switch(nullptr, to);
  (void)jump_fcontext(to.context, &from);
  __builtin_unreachable();
}

}  // namespace ref5d::emu
