// The two kinds of failure a program ends with, and their exit statuses (0: everything holds, 1: a check failed).
#pragma once

#include <stdexcept>
#include <string>

namespace ref5d {

inline constexpr int kExitOk = 0;
inline constexpr int kExitCheckFailed = 1;
inline constexpr int kExitBadInput = 2;
inline constexpr int kExitBroken = 3;

// Bad usage, configuration or input file: the message says, in one line, what is wrong and what would be right. Status 2.
struct InputError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The run broke (disk full, a peer died, a time-out), in one line. Status 3.
struct RunError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace ref5d
