// A stable sort of small integers, hand-written (least-significant-digit radix sort, 8 bits a pass).
#pragma once

#include "common/tensor/tensor.h"

namespace ref5d {

// order [T] (int32): the indices 0..T-1 sorted by keys [T] (int32, 0 <= key < limit), equal keys in index order.
void stable_sort(Stream& stream, const Tensor& order, const Tensor& keys, std::int64_t limit);

}  // namespace ref5d
