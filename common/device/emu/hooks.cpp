// What the compiler calls before each access to memory in code built with -fsanitize=thread. ThreadSanitizer's own runtime is
// not linked: these functions take its place.
#include <atomic>
#include <cstring>

#include "common/device/emu/block.h"
#include "common/device/emu/shared_variables.h"

namespace ref5d::emu {
namespace {

extern "C" const char __executable_start, _end;  // the linker's

// What a kernel may touch besides device memory: its own locals, and the program's constants.
Fault outside(std::uintptr_t address, std::size_t bytes, bool writes, const Access& self) {
  if (in_stacks(address)) {
    const std::uintptr_t own = stack_begin(self.thread);
    return address >= own && address + bytes <= own + kStackBytes ? Fault::kNone : Fault::kOtherStack;
  }
  const auto begin = reinterpret_cast<std::uintptr_t>(&__executable_start), end = reinterpret_cast<std::uintptr_t>(&_end);
  return !writes && address >= begin && address < end ? Fault::kNone : Fault::kHostMemory;
}

[[gnu::noinline]] void report(Fault fault, std::uintptr_t address, std::size_t bytes, bool writes, BadAccess& bad) {
  bad.fault = fault;
  bad.address = address;
  bad.bytes = bytes;
  bad.writes = writes;
  bad.self = current_thread->self;
  Block::current().fail(bad);
}

inline void check(const void* p, std::size_t bytes, Use use, bool aligned, const void* return_address) {
  Thread* const t = current_thread;
  if (t == nullptr || bytes == 0) return;
  const auto address = reinterpret_cast<std::uintptr_t>(p);
  t->self.pc = program_offset(reinterpret_cast<std::uintptr_t>(return_address));
  BadAccess bad;
  Fault fault = Fault::kNone;
  std::uintptr_t device_address = address;
  if (address - kMemory >= kMemoryBytes) {
    fault = outside(address, bytes, use != Use::kRead, t->self);
    device_address = fault == Fault::kHostMemory ? shared_variable(address) : 0;
  }
  if (device_address != 0)
    fault = aligned && address % bytes != 0 ? Fault::kMisaligned : touch(device_address, bytes, use, t->self, bad);
  if (fault != Fault::kNone) report(fault, address, bytes, use != Use::kRead, bad);
  if (++t->accesses % kStretch == 0) Block::current().after_stretch();
}

}  // namespace

void before_atomic(const void* at, std::size_t bytes, bool floating) {
  Block& block = Block::current();
  if (floating) {
    BadAccess bad;
    current_thread->self.pc = program_offset(reinterpret_cast<std::uintptr_t>(__builtin_return_address(0)));
    report(Fault::kFloatAtomic, reinterpret_cast<std::uintptr_t>(at), bytes, true, bad);
  }
  block.maybe_pass();
  current_thread->self.atomic = 1;
  check(at, bytes, Use::kAtomic, true, __builtin_return_address(0));
  current_thread->self.atomic = 0;
}

}  // namespace ref5d::emu

using ref5d::emu::check;
using ref5d::emu::Use;

#define REF5D_ACCESS(bytes)                                                                                       \
  void __tsan_read##bytes(void* p) { check(p, bytes, Use::kRead, true, __builtin_return_address(0)); }            \
  void __tsan_write##bytes(void* p) { check(p, bytes, Use::kWrite, true, __builtin_return_address(0)); }          \
  void __tsan_unaligned_read##bytes(void* p) { check(p, bytes, Use::kRead, false, __builtin_return_address(0)); } \
  void __tsan_unaligned_write##bytes(void* p) { check(p, bytes, Use::kWrite, false, __builtin_return_address(0)); }

extern "C" {
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void*, void*) {}
REF5D_ACCESS(1)
REF5D_ACCESS(2)
REF5D_ACCESS(4)
REF5D_ACCESS(8)
REF5D_ACCESS(16)
void __tsan_read_range(void* p, unsigned long bytes) { check(p, bytes, Use::kRead, false, __builtin_return_address(0)); }
void __tsan_write_range(void* p, unsigned long bytes) { check(p, bytes, Use::kWrite, false, __builtin_return_address(0)); }
}

// .cu files call these for the C library's (the Makefile renames them there): the compiler puts no calls before those.
extern "C" {
void* ref5d_memmove(void* to, const void* from, std::size_t bytes) {
  if (ref5d::emu::current_thread == nullptr) return std::memmove(to, from, bytes);
  check(from, bytes, Use::kRead, false, __builtin_return_address(0));
  check(to, bytes, Use::kWrite, false, __builtin_return_address(0));
  auto* const target = static_cast<volatile char*>(to);  // or the loop would become the library's function
  const auto* const source = static_cast<const char*>(from);
  const bool forward = static_cast<const void*>(to) <= from;
  for (std::size_t i = 0; i < bytes; ++i) {
    const std::size_t at = forward ? i : bytes - 1 - i;
    target[at] = source[at];
  }
  return to;
}
[[gnu::alias("ref5d_memmove")]] void* ref5d_memcpy(void* to, const void* from, std::size_t bytes);
void* ref5d_memset(void* to, int value, std::size_t bytes) {
  if (ref5d::emu::current_thread == nullptr) return std::memset(to, value, bytes);
  check(to, bytes, Use::kWrite, false, __builtin_return_address(0));
  for (std::size_t i = 0; i < bytes; ++i) static_cast<volatile char*>(to)[i] = static_cast<char>(value);
  return to;
}
}

// The host's half of a .cu file uses atomics too (reference counts, static variables): they are plain here.
// NOLINTBEGIN(bugprone-macro-parentheses): a type
#define REF5D_ATOMICS(bits, type)                                                                                            \
  type __tsan_atomic##bits##_load(const volatile type* a, int) { return __atomic_load_n(a, __ATOMIC_SEQ_CST); }              \
  void __tsan_atomic##bits##_store(volatile type* a, type v, int) { __atomic_store_n(a, v, __ATOMIC_SEQ_CST); }              \
  type __tsan_atomic##bits##_exchange(volatile type* a, type v, int) { return __atomic_exchange_n(a, v, __ATOMIC_SEQ_CST); } \
  type __tsan_atomic##bits##_fetch_add(volatile type* a, type v, int) { return __atomic_fetch_add(a, v, __ATOMIC_SEQ_CST); } \
  type __tsan_atomic##bits##_fetch_sub(volatile type* a, type v, int) { return __atomic_fetch_sub(a, v, __ATOMIC_SEQ_CST); } \
  type __tsan_atomic##bits##_fetch_and(volatile type* a, type v, int) { return __atomic_fetch_and(a, v, __ATOMIC_SEQ_CST); } \
  type __tsan_atomic##bits##_fetch_or(volatile type* a, type v, int) { return __atomic_fetch_or(a, v, __ATOMIC_SEQ_CST); }   \
  type __tsan_atomic##bits##_fetch_xor(volatile type* a, type v, int) { return __atomic_fetch_xor(a, v, __ATOMIC_SEQ_CST); } \
  int __tsan_atomic##bits##_compare_exchange_strong(volatile type* a, type* expected, type v, int, int) {                    \
    return __atomic_compare_exchange_n(a, expected, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                           \
  }                                                                                                                          \
  int __tsan_atomic##bits##_compare_exchange_weak(volatile type* a, type* expected, type v, int, int) {                      \
    return __atomic_compare_exchange_n(a, expected, v, true, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                            \
  }
// NOLINTEND(bugprone-macro-parentheses)

extern "C" {
REF5D_ATOMICS(8, unsigned char)
REF5D_ATOMICS(16, unsigned short)
REF5D_ATOMICS(32, unsigned int)
REF5D_ATOMICS(64, unsigned long)
void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
}
