#include <omp.h>

#include <algorithm>
#include <latch>
#include <system_error>
#include <thread>
#include <vector>

#include "common/device/cpu/executor.h"
#include "common/device/device.h"
#include "common/device/error.h"

namespace ref5d {

void Device::select(int) {}

namespace {
// OpenMP's runtime ends the program, with the status of a failed check, when it cannot start a thread. So they are tried first.
void try_threads(int n) {
  std::vector<std::thread> threads;
  std::latch all_started(1);
  try {
    for (int i = 1; i < n; ++i) threads.emplace_back([&] { all_started.wait(); });
  } catch (const std::system_error&) {
  }
  all_started.count_down();
  for (std::thread& t : threads) t.join();
  const int started = static_cast<int>(threads.size()) + 1;
  if (started >= n) return;
  throw RunError("only " + std::to_string(started) + " of " + std::to_string(n) +
                 " threads could be started; set OMP_NUM_THREADS lower, or raise the limits on memory and processes");
}
}  // namespace

void Device::set_threads(int n) {
  threads_ = std::min(n, omp_get_thread_limit());
  try_threads(threads_);
  cpu::set_kernel_threads(threads_);
  omp_set_num_threads(threads_);
}

void Device::synchronize() { cpu::drain(); }

#ifdef REF5D_EMU
std::string Device::mode() { return "emu"; }
std::string Device::description() { return "an emulated GPU"; }
#else
std::string Device::mode() { return "cpu"; }
std::string Device::description() { return std::to_string(omp_get_num_procs()) + " cores"; }
#endif

namespace backend {
void profile_start() {}
void profile_stop() {}
}  // namespace backend

}  // namespace ref5d
