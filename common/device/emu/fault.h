// What the emulator reports, in one line: what is wrong, in which kernel, block and thread, and at which line.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "common/device/emu/access.h"
#include "common/device/error.h"

namespace ref5d::emu {

enum class Fault {
  kNone,
  kRace,           // two threads, no barrier between, one of them writes
  kStreamRace,     // two streams, no event between
  kUninitialized,  // read of what nobody wrote
  kOutOfBounds,
  kUseAfterFree,
  kMisaligned,
  kHostMemory,         // an address that is not the device's
  kOtherStack,         // another thread's local memory
  kBarrierDivergence,  // some threads wait at one barrier, some at another
  kEarlyExit,          // some threads have left, some wait at a barrier
  kMissingLane,        // a warp operation names a lane that does not take part
  kFloatAtomic,        // its result would depend on the order
  kEndless,            // a thread that does not come to an end
  kResources,          // more threads or shared memory than a GPU has
};
[[nodiscard]] const char* fault_name(Fault fault);

struct EmulatorError : RunError {
  EmulatorError(Fault f, const std::string& message) : RunError(message), fault(f) {}
  Fault fault;
};

// One wrong access: what it did, and whom it collides with.
struct BadAccess {
  Fault fault = Fault::kNone;
  std::uintptr_t address = 0;
  std::size_t bytes = 0;
  bool writes = false;
  Access self, other;  // other.task is 0 if there is none
  bool other_writes = false;
};

[[noreturn]] void throw_bad_access(const BadAccess& bad);
// "KERNEL, block (2,0,0), thread 17"; of a task that is no kernel, its name.
[[nodiscard]] std::string describe_place(const Access& a);
// "common/kernels/rmsnorm.cu:22", with the callers into which it was inlined; empty if unknown. `pc` as in Access.
[[nodiscard]] std::string describe_line(std::uint32_t pc);
[[noreturn]] void throw_fault(Fault fault, const std::string& what);

// Of an address in the program.
[[nodiscard]] std::uint32_t program_offset(std::uintptr_t pc);

}  // namespace ref5d::emu
