// A routing from a file (--route-replay FILE), of this suite or of another framework that is compared with it.
#pragma once

#include <string>

#include "common/model/config.h"
#include "common/model/route_log.h"

namespace ref5d::expert_parallel {

// The tensors sub/I/experts of a safetensors file, one for each layer I: integers [samples, S, k], as --dump-level full writes
// them of a run's first step. The first of them are for the samples first .. first + samples - 1 that a run trains on (after
// --resume, not from 0). InputError if they are not there, have another shape, or name experts that the model has not, or one
// twice for a token.
[[nodiscard]] Routes read_routes(const std::string& path, const GptConfig& model, std::int64_t first, std::int64_t samples);

}  // namespace ref5d::expert_parallel
