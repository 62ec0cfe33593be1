// A GPU thread's stack and registers, switched in user space (Boost.Context's fcontext; its fibers unwind their stack when they
// are dropped, which a thread stopped in the middle of a kernel must not).
#pragma once

#include <boost/context/detail/fcontext.hpp>
#include <cstddef>
#include <cstdint>

namespace ref5d::emu {

struct Fiber {
  boost::context::detail::fcontext_t context = nullptr;
  const void* bottom = nullptr;  // of the stack, for AddressSanitizer
  std::size_t size = 0;
  void* fake_stack = nullptr;
};

// Stack `index` of the process's, from its lowest address. They lie side by side, with a page between that nobody may touch.
inline constexpr std::size_t kStackBytes = 64 * 1024, kStackPitch = kStackBytes + 4096;
[[nodiscard]] std::uintptr_t stack_begin(unsigned index);
// Whether an address is in any of the stacks.
[[nodiscard]] bool in_stacks(std::uintptr_t address);

// What to do when a fiber runs beyond its stack, called on another one; it does not return. (Without one the program just
// dies.)
void on_stack_overflow(void (*handler)());

// `fiber` will run entry() on stack `index` when it is first switched to. entry() never returns.
void prepare(Fiber& fiber, unsigned index, void (*entry)());
// Goes on with `to`; returns when somebody switches back to `from`.
void switch_to(Fiber& from, Fiber& to);
// The same for a fiber that will not run again.
[[noreturn]] void leave(Fiber& from, Fiber& to);

}  // namespace ref5d::emu
