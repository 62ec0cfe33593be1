// The side experiments of lesson 01: what one device can do before a second one is needed. Each adds claims with expected and
// measured values.
#pragma once

#include <string>
#include <vector>

#include "common/app/options.h"
#include "common/verify/report.h"

namespace ref5d::grad_accum {

// "none", the names below, "all".
[[nodiscard]] std::vector<std::string> experiment_names();
// Runs the named one and appends its claims to the report; tables go to stdout unless options.quiet.
void run_experiments(const std::string& name, const Options& options, Report& report);

// Activation recomputation: none, full and selective give the same bits; memory, flops and time beside each other.
void recompute_experiment(const Options& options, Verdict& verdict);
// Naive attention's O(S^2) activations against flash's O(S), S from 64 to 1024.
void attention_experiment(const Options& options, Verdict& verdict);
// Bytes per parameter of every precision; why sums and masters are fp32.
void precision_experiment(const Options& options, Verdict& verdict);
// SwiGLU, norm and cross-entropy in one kernel against step by step: bytes moved and time.
void fusion_experiment(const Options& options, Verdict& verdict);
// mbs x grad_acc x dp, and the 4M-token example.
void batch_experiment(const Options& options, Verdict& verdict);
// Documents packed into rows against padded: wasted flops, useful tokens per second, and equal gradients.
void packing_experiment(const Options& options, Verdict& verdict);

}  // namespace ref5d::grad_accum
