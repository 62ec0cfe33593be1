// Rows of a matrix in another order.
#pragma once

#include "common/tensor/tensor.h"

namespace ref5d {

// y [R, C] = x[index[r]] for each row r: x [*, C] of the same dtype, any that tensors have; index int32 [R]. Zeros where
// index[r] is not a row of x, -1 say. A row may be taken several times. y and x may have larger leading dims, but share no
// storage. Bits are copied, so nothing is rounded.
//
// With a permutation of x's rows as index this permutes them; the inverse permutation, inverse[index[r]] = r, takes them back,
// and is the permutation's backward.
void take_rows(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& index);

}  // namespace ref5d
