// The single-device run that every lesson's run must agree with.
#pragma once

#include "common/app/options.h"
#include "common/train/run_record.h"

namespace ref5d {

// Trains `steps` steps in `dtype` with the settings' model, seed and global batch, the plainest way: the batch as one
// micro-batch, nothing recomputed. Resumes where the options do.
[[nodiscard]] RunRecord train_baseline(const Options& options, const TrainerOptions& settings, const Dataset& data, Dtype dtype,
                                       std::int64_t steps);

}  // namespace ref5d
