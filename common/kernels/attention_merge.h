// Two partial results of attention, over disjoint sets of keys, become that over both.
//
// With s_k the scores of one query, attention over a set A of keys is its sum of exp(s_k) and the mean of v_k weighted by it:
//   Z_A = sum over A of exp(s_k),   o_A = (sum over A of exp(s_k) v_k) / Z_A,   and what is kept is o_A and lse_A = log Z_A.
// Sums over disjoint sets add up, so over A and B together, with m = max(lse_A, lse_B):
//   Z = Z_A + Z_B                    lse = log Z = m + log(exp(lse_A - m) + exp(lse_B - m))
//   o = (Z_A o_A + Z_B o_B) / Z        = exp(lse_A - lse) o_A + exp(lse_B - lse) o_B
// Taking m out keeps every exponent at or below 0, as in the softmax itself; this is the online softmax of FlashAttention (Dao
// et al. 2022, section 3.1) between blocks of any size, by which a ring of ranks that each hold a block of the keys computes
// attention over all of them (Liu et al. 2023, Ring Attention with Blockwise Transformers).
#pragma once

#include "common/kernels/attention.h"

namespace ref5d {

// o [B*Sq, N*D] and lse [B, N, Sq] become attention over their keys and those of part_o and part_lse, of the same shapes. All
// are in an accumulator's dtype, fp32 or fp64: a result that is merged many times would be rounded as often. o and part_o may
// have larger leading dims. Of `shape` the keys' part does not matter.
//
// An lse of -inf stands for no keys, and its o is not read: the other result is kept or taken bit for bit. Without keys on
// either side o = 0 and lse = -inf. The weights are exp(lse - m) / (sum of both), which is exp(lse - new) but for the rounding
// of `new`: at an lse of 6e4 fp32 holds it to 0.002 only, and o would grow or shrink by as much.
//
// without_maximum: the classic mistake, lse = log(exp(lse) + exp(part_lse)), which overflows where an lse is beyond the dtype's
// largest exponent (88 in fp32).
void attention_merge(Stream& stream, const AttentionShape& shape, const Tensor& o, const Tensor& lse, const Tensor& part_o,
                     const Tensor& part_lse, bool without_maximum = false);

}  // namespace ref5d
