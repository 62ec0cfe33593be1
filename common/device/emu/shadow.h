// What the emulator knows of each byte of device memory: whether it belongs to an allocation, whether anybody has written it,
// and who touched it last.
//
// Device memory is one stretch of addresses. For each word of four bytes there is a byte that says whose it is, and a cell: its
// last write, and of the reads since as many as it takes for any later write to meet one that it races with, if there is one.
// Words that are touched in parts have a cell for each byte besides. All of these lie at fixed addresses too, so that finding
// one is arithmetic; their pages exist once they are touched.
//
// The first pages are the shared memory of the block that runs. What another block left there counts as never written.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/device/emu/access.h"
#include "common/device/emu/fault.h"
#include "common/device/emu/stream_order.h"

namespace ref5d::emu {

inline constexpr std::uintptr_t kMemory = 0x200000000000, kMemoryBytes = std::uintptr_t{1} << 34;
inline constexpr std::uintptr_t kSharedBytes = std::uintptr_t{1} << 24;

struct alignas(64) Cell {
  Access write;
  Access read[2];     // by different threads, of different warps if there are several; atomic operations as well
  bool written;       // or nobody has, and `write` is nobody
  bool split;         // see the bytes' cells
  bool read_earlier;  // by tasks of other streams, too: see ReadersOfOtherStreams
};
static_assert(sizeof(Cell) == 64);

// Of a word: how many of its bytes belong to an allocation, or one of these.
inline constexpr std::uint8_t kNobodys = 0, kFreed = 0xff;

inline constexpr std::uintptr_t kWordStates = 0x208000000000, kWordCells = 0x210000000000, kByteCells = 0x220000000000;

// Reserves the address space. Throws RunError if it is taken.
void reserve_memory();

// The range becomes an allocation that nobody has written.
void mark_live(std::uintptr_t begin, std::size_t bytes);
// The range is no allocation any more: kFreed, or kNobodys as if it had never been one.
void mark_gone(std::uintptr_t begin, std::size_t bytes, std::uint8_t state);

enum class Use { kRead, kWrite, kAtomic };
// `self` touches the range. What is wrong with it, or kNone; then `other` is whom it collides with.
[[nodiscard]] Fault touch(std::uintptr_t address, std::size_t bytes, Use use, const Access& self, BadAccess& bad);
// Whether everything that was done to the range comes before the running task; otherwise `bad` says who collides.
[[nodiscard]] Fault check_free(std::uintptr_t begin, std::size_t bytes, const Access& self, BadAccess& bad);

}  // namespace ref5d::emu
