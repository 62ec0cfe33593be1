#include "common/device/polled.h"

#include <fmt/core.h>
#include <sched.h>
#include <time.h>

#include <algorithm>

#include "common/device/error.h"

namespace ref5d::detail {

void Patience::check(const PolledWork& work) {
  if (work.timeout.count() == 0) return;
  const auto now = std::chrono::steady_clock::now();
  waited_ += std::min<std::chrono::nanoseconds>(now - last_, work.timeout / 10);
  last_ = now;
  if (waited_ < work.timeout) return;
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
