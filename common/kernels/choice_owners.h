// Choices by who has the chosen expert: a rank, or a node of several ranks. M owners; owner [E] int32 says whose each expert
// is, 0 .. M-1. chosen [R, k] int32 as in expert_rows.h, -1 for none.
#pragma once

#include "common/tensor/tensor.h"

namespace ref5d {

// owners [R, M] int32: owners[r, m] = m if a choice of row r is an expert of m, else -1. Slots (expert_rows.h) of one copy of
// the row for each owner, however many of its experts the row has chosen.
void owners_of_choices(Stream& stream, const Tensor& owners, const Tensor& chosen, const Tensor& owner);

// What goes with these copies: for copy i, of slot order[i] of owners [R, M], so row order[i] / M and owner order[i] % M, the
// row's choices that are the owner's, and their weights [n, k] (fp32 or fp64); the others are -1 and 0. order [n] int32.
void take_choices(Stream& stream, const Tensor& taken, const Tensor& taken_weights, const Tensor& chosen, const Tensor& weights,
                  const Tensor& owner, const Tensor& order, int owners);

// mine [R, k] int32 = the choices that are experts begin .. end-1, -1 for the others.
void choices_of_range(Stream& stream, const Tensor& mine, const Tensor& chosen, std::int64_t begin, std::int64_t end);

}  // namespace ref5d
