// The allocations of device memory, for messages.
#pragma once

#include <cstdint>
#include <string>

namespace ref5d::emu {

// "at byte 128 of a buffer of 4096 bytes"; of shared memory, of freed and of foreign addresses likewise.
[[nodiscard]] std::string describe_memory(std::uintptr_t address);

}  // namespace ref5d::emu
