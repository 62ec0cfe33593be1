// How much memory this machine has.
#pragma once

#include <unistd.h>

namespace ref5d {

// Bytes of physical memory. What needs more is refused with a message: the system would end the process, or others, without
// one.
[[nodiscard]] inline double physical_memory_bytes() {
  return static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
}

}  // namespace ref5d
