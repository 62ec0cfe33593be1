// Global tensors from the parts that ranks hold.
#pragma once

#include "common/comm/group.h"
#include "common/model/parameter.h"

namespace ref5d {

// Gathers a parameter's parts on rank 0 of the group, which between them its ranks hold in full; elsewhere the result is empty
// (shape {0}). Every part travels with its placement, so no rank needs to know another's.
[[nodiscard]] Gather gather_parts(const Group& group);

// The rows of all ranks, joined in the group's order, on rank 0; empty elsewhere.
[[nodiscard]] HostTensor gather_rows(const Group& group, const HostTensor& mine);

}  // namespace ref5d
