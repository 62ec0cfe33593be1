// The label of a token whose prediction does not count.
#pragma once

#include <cstdint>

namespace ref5d {

inline constexpr std::int32_t kIgnoreLabel = -100;

}  // namespace ref5d
