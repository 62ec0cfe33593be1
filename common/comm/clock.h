// One clock for several machines.
#pragma once

#include "common/comm/group.h"

namespace ref5d {

// What to add to this rank's steady clock, in microseconds, to have rank 0's: measured by messages there and back, of which the
// quickest of several counts. Every rank of the group calls it.
[[nodiscard]] double clock_offset_us(const Group& group);

}  // namespace ref5d
