#include "common/device/emu/observe.h"

#include <cstdlib>
#include <string>

#include "common/device/cpu/executor.h"
#include "common/device/emu/block.h"
#include "common/device/error.h"

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

std::uint64_t seed_from_environment() {
  const char* const text = std::getenv("REF5D_EMU_SEED");
  if (text == nullptr || *text == '\0') return 0;
  char* end = nullptr;
  const std::uint64_t value = std::strtoull(text, &end, 10);
  if (*end != '\0' || *text < '0' || *text > '9')
    throw InputError("REF5D_EMU_SEED is \"" + std::string(text) + "\"; set it to a whole number, 0 for everything in order");
  return value;
}

struct Order {
  std::uint64_t seed = seed_from_environment();
  TaskId begin = 0;  // the first task under this seed
};
Order& current_order() {
  static Order order;
  return order;
}

}  // namespace

std::uint64_t seed() { return current_order().seed; }
std::uint64_t draw_for_launch() {
  return Random(current_order().seed + (running().id - current_order().begin) * 0x100000001B3u).next();
}
void set_seed(std::uint64_t seed) {
  current_order() = {seed, next_task()};
  cpu::set_order_seed(seed);
}

void device_reads(const void* at, std::size_t row_bytes, std::int64_t rows, std::size_t pitch) {
  touch_rows(at, row_bytes, rows, pitch, Use::kRead);
}
void device_writes(const void* at, std::size_t row_bytes, std::int64_t rows, std::size_t pitch) {
  touch_rows(at, row_bytes, rows, pitch, Use::kWrite);
}
// AddressSanitizer takes the place of the library's functions, which the compiler would call for a loop, but knows no assembly.
void move_bytes(void* to, const void* from, std::size_t bytes) {
  asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
}
void zero_bytes(void* to, std::size_t bytes) { asm volatile("rep stosb" : "+D"(to), "+c"(bytes) : "a"(0) : "memory"); }

void host_reads(const void* at, std::size_t bytes) {
  static auto* const kHost = new StreamClock("host");
  const Running now(kHost->enqueue("copy to host"));
  device_reads(at, bytes);
  kHost->host_waited();  // what is enqueued from now on comes later
}

}  // namespace ref5d::emu
