// What the emulator watches of streams, and of work on device memory that is no kernel: copies, matrix products. Where there is
// no emulator these do nothing.
#pragma once

#ifdef REF5D_EMU
#include "common/device/emu/observe.h"
#else

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

namespace ref5d::emu {

struct Task {};
struct Clock {};
class StreamClock {
 public:
  explicit StreamClock(const std::string&) {}
  Task enqueue(const std::string&) { return {}; }
  Clock snapshot() { return {}; }
  void join(const Clock&) {}
  void host_waited() {}
};
inline void host_waited_for(const Clock&) {}
struct Running {
  explicit Running(const Task&) {}
};
inline void device_reads(const void*, std::size_t, std::int64_t = 1, std::size_t = 0) {}
inline void device_writes(const void*, std::size_t, std::int64_t = 1, std::size_t = 0) {}
inline void host_reads(const void*, std::size_t) {}
inline void move_bytes(void* to, const void* from, std::size_t bytes) { std::memcpy(to, from, bytes); }
inline void zero_bytes(void* to, std::size_t bytes) { std::memset(to, 0, bytes); }
inline std::uint64_t seed() { return 0; }

}  // namespace ref5d::emu

#endif
