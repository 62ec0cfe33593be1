// The version of the suite, as --version and the reports give it.
#pragma once

namespace ref5d {

inline constexpr const char* kVersion = "0.1.0";

}  // namespace ref5d
