// Copies in a stream's order.
#include <chrono>
#include <cstring>
#include <vector>

#include "common/device/cpu/executor.h"
#include "common/device/device.h"
#include "common/device/stream.h"

namespace ref5d {

void copy_to_device(Stream& stream, void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  const auto* begin = static_cast<const std::byte*>(from);
  cpu::enqueue(stream, "copy to device",
               [to, staged = std::vector<std::byte>(begin, begin + bytes)] { std::memcpy(to, staged.data(), staged.size()); });
}

void copy_pinned_to_device(Stream& stream, void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) cpu::enqueue(stream, "copy to device", [=] { std::memcpy(to, from, bytes); });
}

void copy_to_host(Stream& stream, void* to, const void* from, std::size_t bytes) {
  stream.synchronize();
  if (bytes == 0) return;
  const auto begin = std::chrono::steady_clock::now();
  std::memcpy(to, from, bytes);
  if (device().profiler().on()) device().profiler().add(stream.name(), "copy to host", begin, std::chrono::steady_clock::now());
}

void copy_on_device(Stream& stream, void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) cpu::enqueue(stream, "copy", [=] { std::memcpy(to, from, bytes); });
}

void fill_zero(Stream& stream, void* to, std::size_t bytes) {
  if (bytes > 0) cpu::enqueue(stream, "fill zero", [=] { std::memset(to, 0, bytes); });
}

}  // namespace ref5d
