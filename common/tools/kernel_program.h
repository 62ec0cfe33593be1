// The program `kernels`: every kernel's values against another build's, and its time against the machine's rates.
#pragma once

#include <cstdio>

namespace ref5d {

// kernels --write FILE | --compare FILE | --bench | --coverage, and flags that choose cases. Prints to `out` and returns the
// exit status: 0, or 1 if a value differs or a kernel is not launched. Throws InputError for bad usage or files.
[[nodiscard]] int run_kernels(int argc, const char* const* argv, std::FILE* out);

}  // namespace ref5d
