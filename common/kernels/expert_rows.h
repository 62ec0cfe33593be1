// Rows that go to experts, and back. Row r of R has k choices; choice j is its slot r * k + j, of R * k. An expert of -1 is
// none: a choice that was dropped.
//
//   chosen          (2 0) (0 3) (2 1)          three rows, k = 2
//   slots by expert  1 2 | 5 | 0 4 | 3         order: expert 0 has slots 1 and 2, expert 1 has slot 5, ...
//   place           3 0   1 5   4 2            of each slot in that order
//
// Permuted, the rows of an expert are neighbours, in the order of their slots, so that each expert is one matrix product over
// exactly its rows and nothing is padded. All sums are in slot order: no atomics.
#pragma once

#include "common/tensor/tensor.h"

namespace ref5d {

// order [R * k] int32: the slots by expert, equal experts by slot, those of none at the end; counts [E] int32: how many each
// expert has. chosen [R, k] int32, -1 .. E-1.
void sort_slots(Stream& stream, const Tensor& order, const Tensor& counts, const Tensor& chosen);
// place [slots] int32: place[order[i]] = i for i < n, -1 for slots that are not in order [n], which has none twice. An order
// may hold -1: nothing.
void invert_order(Stream& stream, const Tensor& place, const Tensor& order);

// y [n, H] = x[order[i] / k], the row of slot order[i]; zeros where order[i] is -1. x [R, H] of the same dtype.
void take_slots(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& order, int k);

// y [R, H] = sum over j of weights[r, j] rows[place[r, j]], in the accumulator's dtype A and rounded once. rows [n, H] of y's
// dtype; place [R, k] int32, where -1 adds nothing; weights [R, k] A, undefined for 1 each. The un-permutation; without weights
// also the backward of take_slots.
void sum_slots(Stream& stream, const Tensor& y, const Tensor& rows, const Tensor& place, const Tensor& weights);
// Its backward, where there are weights; without them it is take_slots. drows [n, H] = w[order[i]] dy[order[i] / k], zeros
// where order[i] is -1; w is weights [R, k] A, read as R * k.
void sum_slots_backward(Stream& stream, const Tensor& drows, const Tensor& dy, const Tensor& order, const Tensor& weights);
// dweights [R, k] A = the product of dy[r] with rows[place[r, j]]; exactly 0 where place is -1.
void slot_weights_backward(Stream& stream, const Tensor& dweights, const Tensor& dy, const Tensor& rows, const Tensor& place);

// kept [R, k] int32 = chosen, or -1 for a choice that its expert has no room for: an expert takes the first `capacity` of its
// slots. order as sort_slots made it of chosen, whose storage kept may not be. Rows are those of the whole
// micro-batch in its order, wherever they are computed: so what is dropped does not depend on a layout (pitfall P53).
void drop_beyond_capacity(Stream& stream, const Tensor& kept, const Tensor& chosen, const Tensor& order, std::int64_t capacity);

}  // namespace ref5d
