// A flag that means nothing beside the others would be ignored in silence: so it is refused.
#pragma once

#include <fmt/format.h>

#include <string>

#include "common/app/command_line.h"
#include "common/device/error.h"

namespace ref5d {

// InputError if the flag was given and does not mean anything. here: what takes its meaning; scope: where it has one.
inline void expect_scope(const CommandLine& line, const char* flag, const std::string& here, bool means_something,
                         const std::string& scope) {
  if (!line.given(flag) || means_something) return;
  throw InputError(fmt::format("{} means nothing with {}; it is for {}", line.as_given(flag), here, scope));
}

}  // namespace ref5d
