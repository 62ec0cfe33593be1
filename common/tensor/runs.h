// Where the elements of a part lie in the whole.
#pragma once

#include <cstdint>

namespace ref5d {

// `count` runs of `length` consecutive elements: run i begins at element local_begin + i * local_stride of the part and at
// element global_begin + i * global_stride of the whole (both row-major).
struct Runs {
  std::int64_t count, length, local_begin, local_stride, global_begin, global_stride;
};

}  // namespace ref5d
