#pragma once

#include "common/comm/transport.h"

namespace ref5d {

// All ranks of the group call it, in the same order for all groups.
[[nodiscard]] std::unique_ptr<Transport> make_nccl_transport(const Group& group, const void* key);

}  // namespace ref5d
