#include "common/device/emu/random.h"

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string>

#include "common/device/cpu/executor.h"
#include "common/device/emu/stream_order.h"
#include "common/device/error.h"

namespace ref5d::emu {
namespace {

std::uint64_t seed_from_environment() {
  const char* const text = std::getenv("REF5D_EMU_SEED");
  if (text == nullptr || *text == '\0') return 0;
  std::uint64_t value = 0;
  const char* const end = text + std::strlen(text);
  if (const auto [stop, error] = std::from_chars(text, end, value); stop != end || error != std::errc())
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

}  // namespace ref5d::emu
