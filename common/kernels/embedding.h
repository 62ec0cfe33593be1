// The token embedding and the learned position embedding.
#pragma once

#include "common/tensor/tensor.h"

namespace ref5d {

// y [T, H] = table[index[t]] (table [V, H], index int32 [T]), or += if accumulate. An index outside 0..V-1 contributes zero
// (the vocabulary-parallel embedding relies on it).
void embedding_forward(Stream& stream, const Tensor& y, const Tensor& table, const Tensor& index, bool accumulate);

// dtable [V, H] += for each t, dy[t] at row index[t]. Rows are gathered by a stable sort and summed in order, without atomics;
// each row's sum is formed in the accumulator's dtype and rounded once into dtable (the model's dtype or its accumulator's).
void embedding_backward(Stream& stream, const Tensor& dtable, const Tensor& dy, const Tensor& index);

// Where the rows first .. first + count - 1 of a larger table are here: rows [T] = each token's row of the part, both int32,
// and -1 where it is elsewhere, so that the forwards of all parts sum to the whole's and each backward fills its own rows. With
// clamp 0 instead of -1: a classic mistake, after which every part adds its first row for the tokens that it does not have.
void part_rows(Stream& stream, const Tensor& rows, const Tensor& tokens, std::int64_t first, std::int64_t count,
               bool clamp = false);

}  // namespace ref5d
