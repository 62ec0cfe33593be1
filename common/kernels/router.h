// The router of a mixture of experts, from its logits on: scores, the choice of experts, the weights of what they compute, and
// the losses that keep their load even. R rows (tokens), E experts, k choices a row.
//
//   scores  s [R, E]   softmax(logits), or sigmoid(logits) of each expert for itself
//   chosen  c [R, k]   the k experts of greatest s + bias, the greatest first
//   weights w [R, k]   g s[c], g = scale, or scale / sum of the row's chosen s (renormalised; a sum of 0 divides nothing)
//
// Nothing here rounds to bf16: logits, scores, weights and their gradients are in the accumulator's dtype of the model's, fp32,
// or fp64 in the proof mode, called A below.
#pragma once

#include "common/tensor/tensor.h"

namespace ref5d {

enum class ScoreKind { kSoftmax, kSigmoid };

// scores [R, E] of logits [R, E], both A. A row's softmax is relative to its greatest logit.
void router_scores(Stream& stream, const Tensor& scores, const Tensor& logits, ScoreKind kind);

// Experts are in `groups` equal groups of neighbours, of which a row may use top_groups: those whose two greatest s + bias sum
// to most (one where groups are of one). DeepSeek-V3, section 2.1.2: node-limited routing.
struct ChoiceRule {
  int top_k = 1;
  int groups = 1, top_groups = 1;
};
// chosen [R, k] int32. bias [E] A, undefined for none: it takes part in the choice alone. Of equal values the lower index comes
// first, among experts as among groups, so that a choice never depends on the order of threads. A NaN is less than anything.
// std::logic_error unless groups divides E, top_groups <= groups and k <= top_groups * E / groups.
void choose_experts(Stream& stream, const Tensor& chosen, const Tensor& scores, const Tensor& bias, const ChoiceRule& rule);

// weights [R, k] A.
void routing_weights(Stream& stream, const Tensor& weights, const Tensor& scores, const Tensor& chosen, bool renormalise,
                     double scale);

// How even the load is, for each of D sequences: load [D, 2, E] fp64 = for a sequence d and an expert e the number of choices
// of e by d's rows, and the sum over them of the probability p[r, e]: s itself if softmax, s / (its row's sum) if sigmoid.
// sequence [R] int32: which of the D each row is of, -1 for none (padding, which no load counts). A choice of -1 is none
// either. Summed in fp64, in row order within stretches that depend on R alone and then over these: the same scores give the
// same bits everywhere.
void router_load(Stream& stream, const Tensor& load, const Tensor& scores, const Tensor& chosen, const Tensor& sequence,
                 ScoreKind kind);

// The balance loss of a micro-batch whose sequences have lengths [D] fp64 (rows in all, wherever they are), from its load:
//   loss [1] fp64 = coefficient E / D sum over d, e of f P,   f = choices / (k length),  P = sum of p / length
// (1 for an even load, whatever p; Switch Transformer, equation 4, for k choices), and its gradient by p[r, e] of a row of d,
//   gradient [D, E] A = scale coefficient E / D f / length.
// f counts, so it is a constant for the gradient. A sequence of length 0 adds nothing.
void balance_loss(Stream& stream, const Tensor& loss, const Tensor& gradient, const Tensor& load, const Tensor& lengths,
                  int top_k, double coefficient, double scale);

// z [1] fp64 = the sum over rows of (log sum over e of exp(logits))^2. ST-MoE, equation 5, before its mean and coefficient.
// sequence [R] int32: padding (-1) is in no sum.
void router_z_sum(Stream& stream, const Tensor& z, const Tensor& logits, const Tensor& sequence);

// What router_backward reads. Tensors as above; `chosen` is the choice itself, also of what capacity has dropped since: a
// dropped choice has no dweight, but it is in the sum that renormalises the others.
struct RouterGradient {
  ScoreKind kind = ScoreKind::kSoftmax;
  bool renormalise = true;
  double scale = 1;
  Tensor logits, scores, chosen;  // logits are needed with z_scale alone
  Tensor dweights;                // [R, k] A: d loss / d weights
  Tensor balance_gradient;        // [D, E] A, balance_loss's; undefined for none
  Tensor sequence;                // [R] int32, for both losses; -1 for a row that neither has
  double z_scale = 0;             // d loss / d z of router_z_sum; 0 for none
};
// dlogits [R, E] A = d loss / d logits, of all three parts. With a row's chosen p_j = s[c_j], S their sum, and dw_j:
//   renormalised:  dp_j = scale / S (dw_j - sum over i of dw_i p_i / S)     (exactly 0 if k = 1)
//   otherwise:     dp_j = scale dw_j
// ds = dp at the chosen, plus the balance gradient b[d, e] by p: b if softmax, (b_e - sum over i of b_i p_i) / (sum of s) if
// sigmoid. dlogits_e = s_e (ds_e - sum over i of ds_i s_i) if softmax, ds_e s_e (1 - s_e) if sigmoid, plus
// z_scale 2 lse softmax(logits)_e.
void router_backward(Stream& stream, const Tensor& dlogits, const RouterGradient& g);

}  // namespace ref5d
