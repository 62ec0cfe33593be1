// A kernel whose local variables are more than the emulator's threads have room for.
#include "common/device/launch.h"

namespace ref5d::testing {
namespace {

__global__ void deep(float* out) {
  volatile float local[25600];
  for (int i = 0; i < 25600; ++i) local[i] = 1;
  out[0] = local[threadIdx.x];
}

}  // namespace

void launch_deep(Stream& stream) {
  launch<deep>(stream, 1, 32, static_cast<float*>(nullptr));
  stream.synchronize();
}

}  // namespace ref5d::testing
