// __shared__ float tile[32][33], as CUDA spells it. To the compiler such a variable is a thread_local one of the program: all
// threads of a block run in one thread of the host, and there the program's thread-local variables lie side by side. A kernel
// has no other use for those, so the emulator takes any for the shared memory of the block that runs.
//
// What it cannot tell is where one variable ends and the next begins: a store past the end is found only where it collides
// with another thread's. Nor does it count them against a GPU's 48 KiB. shared<T, N>() has both.
#pragma once

#include <cstdint>

namespace ref5d::emu {

// The address in the emulator's shared memory that stands for this one of the program's; 0 if it is no such variable.
[[nodiscard]] std::uintptr_t shared_variable(std::uintptr_t address);

}  // namespace ref5d::emu
