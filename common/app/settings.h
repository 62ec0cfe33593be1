// From the command line's options to what the model and the trainer take.
#pragma once

#include "common/app/options.h"
#include "common/train/trainer.h"

namespace ref5d {

// The preset with its overrides, checked. InputError if the shape is impossible.
[[nodiscard]] GptConfig model_config(const Options& options);
[[nodiscard]] DatasetOptions dataset_options(const Options& options, const GptConfig& model);
// A single-device run of these options: micro_batch x grad_accum sequences per step for each of the replicas. InputError if one
// device cannot hold the model, unless it is cut over several ranks and compared with nothing.
[[nodiscard]] TrainerOptions trainer_options(const Options& options, const GptConfig& model, std::int64_t replicas,
                                             std::int64_t ranks);
[[nodiscard]] inline TrainerOptions trainer_options(const Options& options, const GptConfig& model, std::int64_t replicas = 1) {
  return trainer_options(options, model, replicas, replicas);
}

}  // namespace ref5d
