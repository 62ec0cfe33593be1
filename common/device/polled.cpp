#include "common/device/polled.h"

#include <fmt/core.h>
#include <sched.h>
#include <time.h>

#include "common/device/error.h"

namespace ref5d::detail {

void check_timeout(const PolledWork& work, std::chrono::steady_clock::time_point begin) {
  if (work.timeout.count() == 0 || std::chrono::steady_clock::now() - begin < work.timeout) return;
  throw RunError(fmt::format("{} was not complete after {:g} s: another rank has ended, or waits in another operation",
                             work.name, std::chrono::duration<double>(work.timeout).count()));
}

// Spinning would take the core from the rank that we wait for.
void back_off(int idle) {
  if (idle <= 50) {
    sched_yield();
  } else {
    const timespec pause{0, 20'000};
    nanosleep(&pause, nullptr);
  }
}

}  // namespace ref5d::detail
