// Copies in a stream's order.
#include <chrono>
#include <vector>

#include "common/device/cpu/executor.h"
#include "common/device/cpu/observe.h"
#include "common/device/device.h"
#include "common/device/stream.h"

namespace ref5d {

void copy_to_device(Stream& stream, void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  const auto* begin = static_cast<const std::byte*>(from);
  cpu::enqueue(stream, "copy to device", [to, staged = std::vector<std::byte>(begin, begin + bytes)] {
    emu::device_writes(to, staged.size());
    emu::move_bytes(to, staged.data(), staged.size());
  });
}

void copy_pinned_to_device(Stream& stream, void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  cpu::enqueue(stream, "copy to device", [=] {
    emu::device_writes(to, bytes);
    emu::move_bytes(to, from, bytes);
  });
}

void copy_to_pinned(Stream& stream, void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  cpu::enqueue(stream, "copy to host", [=] {
    emu::device_reads(from, bytes);
    emu::move_bytes(to, from, bytes);
  });
}

void copy_to_host(Stream& stream, void* to, const void* from, std::size_t bytes) {
  stream.synchronize();
  if (bytes == 0) return;
  const auto begin = std::chrono::steady_clock::now();
  emu::host_reads(from, bytes);
  emu::move_bytes(to, from, bytes);
  if (device().profiler().on()) device().profiler().add(stream.name(), "copy to host", begin, std::chrono::steady_clock::now());
}

void copy_on_device(Stream& stream, void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  cpu::enqueue(stream, "copy", [=] {
    emu::device_reads(from, bytes);
    emu::device_writes(to, bytes);
    emu::move_bytes(to, from, bytes);
  });
}

void fill_zero(Stream& stream, void* to, std::size_t bytes) {
  if (bytes == 0) return;
  cpu::enqueue(stream, "fill zero", [=] {
    emu::device_writes(to, bytes);
    emu::zero_bytes(to, bytes);
  });
}

}  // namespace ref5d
