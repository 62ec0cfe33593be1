// Lesson 01: the same global batch as one big batch and as M micro-batches.
#pragma once

#include "01_grad_accum/sabotage.h"
#include "common/app/options.h"
#include "common/verify/report.h"

namespace ref5d::grad_accum {

// Trains options.steps steps with grad_accum micro-batches of micro_batch sequences; with options.verify also the baseline,
// which takes the same global batch at once, and compares. `sabotage` (may be null) plants a mistake in the run under test.
[[nodiscard]] Report run(const Options& options, const Sabotage* sabotage);

}  // namespace ref5d::grad_accum
