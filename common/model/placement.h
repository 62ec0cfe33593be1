// Which part of a tensor is where.
#pragma once

#include <cstdint>
#include <vector>

#include "common/tensor/host_tensor.h"
#include "common/tensor/runs.h"
#include "common/tensor/tensor.h"

namespace ref5d {

// A stretch of the cut dim, in global indices, and how many ranks of the axis hold it: each counts 1/replicas of it in the
// gradient norm. One segment of the whole dim with as many replicas as the axis has ranks says that
// every rank holds the parameter.
struct Segment {
  std::int64_t begin, end;
  std::int64_t replicas = 1;
};

// Which part of a global tensor a rank holds. Whatever must know about sharding (initialisation, checkpoints, comparison, the
// gradient norm, replica checks) reads this and nothing else. Applied in this order:
//   1. segments of one dim, in local order (a packed [q|k|v] weight has three; what lives on other ranks altogether, as another
//      pipeline stage's weights, has none);
//   2. a flat range of what is left, after ZeRO: elements of the row-major local part.
struct Placement {
  int dim = -1;  // -1: not cut
  std::vector<Segment> segments;
  std::int64_t flat_begin = 0, flat_end = -1;  // -1: to the end
};

// The shape of the part, and the runs of its elements, both before the flat range.
[[nodiscard]] Shape local_shape(const Shape& global, const Placement& placement);
[[nodiscard]] std::vector<Runs> runs_of(const Shape& global, const Placement& placement);

// The flat range with its end resolved: elements of a local part of local_numel. std::logic_error if it is not in it.
struct FlatRange {
  std::int64_t begin, end;
  [[nodiscard]] std::int64_t size() const { return end - begin; }
};
[[nodiscard]] FlatRange flat_range(const Placement& placement, std::int64_t local_numel);
// Whether some of a tensor may be elsewhere: it has segments (one may be the whole dim) or a flat range.
[[nodiscard]] bool is_cut(const Placement& placement);

// What of a global tensor lies in `placement` (one-dimensional after a flat range), and the reverse: writes a part into its
// global place.
[[nodiscard]] HostTensor cut(const HostTensor& global, const Placement& placement);
void paste(HostTensor& global, const HostTensor& part, const Placement& placement);

}  // namespace ref5d
