// Softmax cross-entropy over the vocabulary, with ignored labels (-100).
//
// The law of gradients: the loss is the sum over valid labels divided by their number in the *global* batch, and that division
// is `scale` here, applied once. With p = softmax(logits):  loss[t] = log(sum exp(logits - max)) + max - logits[label],
// dlogits = (p - onehot(label)) * scale, and both are 0 for an ignored label, whatever its logits. Labels are validated where
// they are read; one that is neither ignored nor in 0..V-1 gets NaN for its loss and its row of dlogits, so that it shows.
#pragma once

#include "common/tensor/ignore_label.h"
#include "common/tensor/tensor.h"

namespace ref5d {

// Fused: logits [T, V] become dlogits in place; loss [T] in the accumulator's dtype is not multiplied by scale.
void cross_entropy(Stream& stream, const Tensor& logits, const Tensor& loss, const Tensor& labels, double scale);

// Only the loss; logits stay.
void cross_entropy_loss(Stream& stream, const Tensor& loss, const Tensor& logits, const Tensor& labels);

// Step by step, as an unfused framework does it: probabilities [T, V] in an array of their own, the loss from them, and the
// gradient in another pass. For comparison only: a probability that is zero in the model's dtype makes the loss infinite.
// logits [T, V] are kept and dlogits is an array of its own.
void cross_entropy_unfused(Stream& stream, const Tensor& dlogits, const Tensor& probabilities, const Tensor& loss,
                           const Tensor& logits, const Tensor& labels, double scale);

// total [1] (fp64) += the sum of loss [T], in a fixed order.
void add_loss(Stream& stream, const Tensor& total, const Tensor& loss);

}  // namespace ref5d
