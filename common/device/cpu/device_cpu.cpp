#include <omp.h>

#include <algorithm>

#include "common/device/cpu/executor.h"
#include "common/device/device.h"

namespace ref5d {

void Device::select(int) {}

void Device::set_threads(int n) {
  threads_ = std::min(n, omp_get_thread_limit());
  cpu::set_kernel_threads(threads_);
  omp_set_num_threads(threads_);
}

void Device::synchronize() { cpu::drain(); }

std::string Device::mode() { return "cpu"; }

std::string Device::description() { return std::to_string(omp_get_num_procs()) + " cores"; }

namespace backend {
void profile_start() {}
void profile_stop() {}
}  // namespace backend

}  // namespace ref5d
