// Experts that all get the same number of rows, as buffers of a fixed capacity have them.
#pragma once

#include "common/tensor/tensor.h"

namespace ref5d {

// padded [E * rows] int32: for each expert the first `rows` of its slots in order [N] (sorted by expert, counts [E] of each;
// see expert_rows.h), and -1 behind them.
void pad_slots(Stream& stream, const Tensor& padded, const Tensor& order, const Tensor& counts, std::int64_t rows);

}  // namespace ref5d
