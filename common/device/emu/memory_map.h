// The allocations of device memory.
#pragma once

#include <cstdint>
#include <string>

#include "common/device/emu/access.h"

namespace ref5d::emu {

// The task that stands for the allocation of the memory at `address`; 0 if there is none.
[[nodiscard]] TaskId allocated_by(std::uintptr_t address);

// "at byte 128 of a buffer of 4096 bytes"; of shared memory, of freed and of foreign addresses likewise.
[[nodiscard]] std::string describe_memory(std::uintptr_t address);

}  // namespace ref5d::emu
