// Whether ranks that should hold the same do.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/comm/group.h"
#include "common/model/parameter.h"

namespace ref5d {

// Of all their bits: equal for equal tensors, and with all likelihood only then.
[[nodiscard]] std::string fingerprint(const std::vector<HostTensor>& tensors);
// Whether tensors that the ranks of a group should hold alike are equal in every bit, on all of them.
[[nodiscard]] bool equal_on_all(const Group& group, const std::vector<Tensor>& tensors, Stream& stream);

// Of ranks that hold different parts: the elements of these parameters' weights that several of the group's ranks hold, and
// that are not the same bits on all of them. The number on rank 0, and 0 elsewhere; all ranks call it for the same parameters.
[[nodiscard]] std::int64_t unequal_elements(const Group& group, const std::vector<const Parameter*>& parameters,
                                            Stream& stream);

}  // namespace ref5d
