// See cpu/observe.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "common/device/emu/random.h"
#include "common/device/emu/stream_order.h"

namespace ref5d::emu {

// The running task, which is no kernel, reads or writes `rows` stretches of so many bytes, `pitch` bytes from each other.
// Throws EmulatorError.
void device_reads(const void* at, std::size_t row_bytes, std::int64_t rows = 1, std::size_t pitch = 0);
void device_writes(const void* at, std::size_t row_bytes, std::int64_t rows = 1, std::size_t pitch = 0);
// Work of the host, which comes after everything that it has waited for.
void run_on_host(const std::string& name, const std::function<void()>& work);
// The host copies device memory to itself.
void host_reads(const void* at, std::size_t bytes);
// memcpy and memset for device memory, which AddressSanitizer keeps the host's code from.
void move_bytes(void* to, const void* from, std::size_t bytes);
void zero_bytes(void* to, std::size_t bytes);

}  // namespace ref5d::emu
