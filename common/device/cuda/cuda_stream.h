// What the CUDA half of the device layer shares: errors, native handles, timing.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <string>

#include "common/device/stream.h"

namespace ref5d {

namespace cuda {
// Turns a CUDA error into a RunError that names the call.
void check(cudaError_t status, const char* what);

struct PendingSpan;

// Brackets a piece of work with events while the profiler is on.
class ProfileScope {
 public:
  ProfileScope(Stream& stream, const std::string& name);
  ~ProfileScope();
  ProfileScope(const ProfileScope&) = delete;
  ProfileScope& operator=(const ProfileScope&) = delete;

 private:
  Stream* stream_ = nullptr;
  PendingSpan* span_ = nullptr;  // null while the profiler is off
};

// After the host has waited for something: lets go of host tasks that have run, and throws the first error among them that
// was not thrown before.
void finish_host_tasks();
// Those of a stream that has run dry and ends, with their errors.
void forget_host_tasks(const Stream& stream);

[[nodiscard]] cudaStream_t native(Stream& stream);
// Kernels that want more than 48 KiB of dynamic shared memory must say so.
void allow_shared_bytes(const void* kernel, std::size_t bytes);
}  // namespace cuda

}  // namespace ref5d
