// Softmax cross-entropy where each rank holds some columns of the logits: a contiguous range of the vocabulary, of any size.
//
// Three kernels, between which the caller reduces [T]-sized statistics over the ranks; the logits themselves never travel
// (Shoeybi et al. 2019, section 3). With greatest = the row's greatest logit of all parts:
//   cross_entropy_part_max    then max over the parts   -> greatest
//   cross_entropy_part_sums   then sum over the parts   -> sum of exp(logit - greatest), and the label's logit - greatest
//   cross_entropy_from_parts                            -> the loss, the same on every part, and this part's dlogits
// The results are cross_entropy.h's. `first` is the whole vocabulary's index of the part's first column, `vocab` the number of
// entries of all parts. Shapes: logits [T, V here], contiguous; labels int32 [T], of the whole vocabulary; greatest, loss [T]
// and sums [2, T] in the accumulator's dtype.
#pragma once

#include "common/tensor/tensor.h"

namespace ref5d {

// greatest[t] = the row's greatest logit here, -inf if the part has no columns.
void cross_entropy_part_max(Stream& stream, const Tensor& greatest, const Tensor& logits);

// greatest: of all parts. sums[0, t] = the sum of exp(logit - greatest) here. sums[1, t] = the label's logit - greatest if the
// label is here, 0 if another part has it, NaN if none has. Both are 0 for an ignored label, whatever its logits.
void cross_entropy_part_sums(Stream& stream, const Tensor& sums, const Tensor& logits, const Tensor& greatest,
                             const Tensor& labels, std::int64_t first, std::int64_t vocab);

// greatest and sums: of all parts. loss[t] = log(sums[0, t]) - sums[1, t], not multiplied by scale; the logits become
// dlogits = (softmax - onehot(label)) * scale. Both are 0 for an ignored label and NaN for one that no part has.
void cross_entropy_from_parts(Stream& stream, const Tensor& logits, const Tensor& loss, const Tensor& greatest,
                              const Tensor& sums, const Tensor& labels, std::int64_t first, std::int64_t vocab, double scale);

}  // namespace ref5d
