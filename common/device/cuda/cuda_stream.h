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

// Brackets a piece of work with events while the profiler is on.
class ProfileScope {
 public:
  ProfileScope(Stream& stream, const std::string& name);
  ~ProfileScope();
  ProfileScope(const ProfileScope&) = delete;
  ProfileScope& operator=(const ProfileScope&) = delete;

 private:
  Stream* stream_ = nullptr;
};
[[nodiscard]] cudaStream_t native(Stream& stream);
// Kernels that want more than 48 KiB of dynamic shared memory must say so.
void allow_shared_bytes(const void* kernel, std::size_t bytes);
}  // namespace cuda

}  // namespace ref5d
