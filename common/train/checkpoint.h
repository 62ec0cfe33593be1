// Checkpoints: everything that training continues from.
//
//   DIR/step_N/model.safetensors      the exact weights (masters where there are), Hugging Face names: --load reads it too
//   DIR/step_N/optimizer.safetensors  m/NAME and v/NAME
//   DIR/step_N/state.json             the steps taken, the model, the seed, the global batch, and a fingerprint of the data
//   DIR/latest                        the name of the newest complete checkpoint
// A step that is saved again becomes step_N.1, and step_N goes once `latest` names its successor.
// A checkpoint is written under a temporary name and renamed when it is complete, so a crash or a full disk loses nothing that
// was saved before.
#pragma once

#include <cstdint>
#include <string>

#include "common/train/trainer.h"

namespace ref5d {

// Every rank calls it, since parts are gathered; one of them writes. InputError if DIR cannot be made, RunError if the disk is
// full; either way nothing half-written stays.
void save(Trainer& trainer, const std::string& dir, bool writes = true);
// How many steps had been taken at DIR's newest checkpoint. InputError as below.
[[nodiscard]] std::int64_t steps_taken_at(const std::string& dir);
// Continues from DIR's newest checkpoint (or from DIR itself if it is one). InputError naming what is missing, truncated or of
// another shape.
void resume(Trainer& trainer, const std::string& dir);

}  // namespace ref5d
