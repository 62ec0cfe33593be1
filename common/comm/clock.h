// One clock for several machines.
#pragma once

#include <functional>

#include "common/comm/group.h"

namespace ref5d {

// Microseconds of this process's steady clock.
[[nodiscard]] double steady_us();

// What to add to this rank's clock, in microseconds, to have rank 0's: measured by messages there and back, of which the
// quickest of several counts. Every rank of the group calls it.
[[nodiscard]] double clock_offset_us(const Group& group, const std::function<double()>& clock = steady_us);

}  // namespace ref5d
