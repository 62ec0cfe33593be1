#include "common/device/emu/observe.h"

#include <fmt/core.h>

#ifdef REF5D_ASAN
#include <sanitizer/asan_interface.h>
#endif

#include <string>

#include "common/device/emu/block.h"

namespace ref5d::emu {
namespace {

void touch_rows(const void* at, std::size_t row_bytes, std::int64_t rows, std::size_t pitch, Use use) {
  BadAccess bad;
  bad.self = {.task = running().id};
  bad.bytes = row_bytes;
  bad.writes = use == Use::kWrite;
  for (std::int64_t r = 0; row_bytes > 0 && r < rows; ++r) {
    bad.address = reinterpret_cast<std::uintptr_t>(at) + static_cast<std::uintptr_t>(r) * pitch;
    bad.fault = bad.address - kMemory < kMemoryBytes ? touch(bad.address, row_bytes, use, bad.self, bad) : Fault::kHostMemory;
    if (bad.fault != Fault::kNone) throw_bad_access(bad);
  }
}

}  // namespace

void device_reads(const void* at, std::size_t row_bytes, std::int64_t rows, std::size_t pitch) {
  touch_rows(at, row_bytes, rows, pitch, Use::kRead);
}
void device_writes(const void* at, std::size_t row_bytes, std::int64_t rows, std::size_t pitch) {
  touch_rows(at, row_bytes, rows, pitch, Use::kWrite);
}
namespace {
// Of a copy's end that is the host's. (Of device memory the emulator knows itself.)
void check_host([[maybe_unused]] const void* at, [[maybe_unused]] std::size_t bytes) {
#ifdef REF5D_ASAN
  const auto address = reinterpret_cast<std::uintptr_t>(at);
  if (address - kMemory < kMemoryBytes || __asan_region_is_poisoned(const_cast<void*>(at), bytes) == nullptr) return;
  throw EmulatorError(Fault::kOutOfBounds,
                      fmt::format("out of bounds in a copy: {} bytes of the host's memory, of which not all are allocated "
                                  "(REF5D_EMU_SEED={})",
                                  bytes, seed()));
#endif
}
}  // namespace

// AddressSanitizer takes the place of the library's functions, which the compiler would call for a plain loop.
#ifdef __x86_64__
static void move(void* to, const void* from, std::size_t bytes) {
  asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
}
void zero_bytes(void* to, std::size_t bytes) { asm volatile("rep stosb" : "+D"(to), "+c"(bytes) : "a"(0) : "memory"); }
#else
static void move(void* to, const void* from, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i) static_cast<volatile char*>(to)[i] = static_cast<const char*>(from)[i];
}
void zero_bytes(void* to, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i) static_cast<volatile char*>(to)[i] = 0;
}
#endif

void move_bytes(void* to, const void* from, std::size_t bytes) {
  check_host(to, bytes);
  check_host(from, bytes);
  move(to, from, bytes);
}

void run_on_host(const std::string& name, const std::function<void()>& work) {
  static auto* const kHost = new StreamClock("host");
  const Running now(kHost->enqueue(name));
  work();
  kHost->host_waited();  // what is enqueued from now on comes later
}

void host_reads(const void* at, std::size_t bytes) {
  run_on_host("copy to host", [=] { device_reads(at, bytes); });
}

}  // namespace ref5d::emu
