// Global tensors from the parts that ranks hold.
#pragma once

#include <vector>

#include "common/comm/group.h"
#include "common/model/parameter.h"

namespace ref5d {

// Gathers a parameter's parts on rank 0 of the group, which between them its ranks hold in full; elsewhere the result is empty
// (shape {0}). Every part travels with its placement, so no rank needs to know another's.
[[nodiscard]] Gather gather_parts(const Group& group);

// A rank's part of a global tensor.
struct PlacedPart {
  Placement placement;
  HostTensor data;  // one-dimensional
};
// Every rank's, by rank, on rank 0 of the group; nothing elsewhere.
[[nodiscard]] std::vector<PlacedPart> gather_placed_parts(const Group& group, const Placement& placement,
                                                          const HostTensor& part);

// Which part of an activation of the whole global batch, [rows, columns], a rank holds. Global indices, in local order.
struct ActivationPart {
  std::vector<Segment> rows, columns;  // empty: all of them
  bool partial = false;                // what several ranks hold is each one's share of a sum
};

// Gathers an activation [rows, columns] of the global batch on rank 0 of the group; elsewhere the result is empty (shape {0}).
[[nodiscard]] HostTensor gather_activation(const Group& group, const HostTensor& mine, const ActivationPart& part);

}  // namespace ref5d
