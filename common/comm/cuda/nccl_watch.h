// Sees that NCCL's operations end. They run on the GPU, where nothing can throw: an operation whose peer is gone would keep the
// host waiting for ever.
#pragma once

#include <nccl.h>

#include <string>

#include "common/device/stream.h"

namespace ref5d::cuda {

// After an operation was enqueued on the stream. When it is not complete after the world's time-out, or its communicator has an
// error, the process ends with one line and status 3, and the launcher ends the others.
void watch(ncclComm_t comm, const std::string& name, Stream& stream);
// The communicator ends: what of it is watched is forgotten.
void forget(ncclComm_t comm);

}  // namespace ref5d::cuda
