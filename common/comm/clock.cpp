#include "common/comm/clock.h"

#include <chrono>
#include <limits>

#include "common/comm/mpi_wait.h"
#include "common/comm/world.h"

namespace ref5d {

namespace {

constexpr int kRounds = 8;

void exchange(double* value, int peer, bool send) {
  constexpr int kTag = static_cast<int>(ReservedTag::kHost);
  mpi::Messages message;
  auto* bytes = reinterpret_cast<std::byte*>(value);
  if (send) {
    message.send(bytes, sizeof(double), peer, kTag);
  } else {
    message.receive(bytes, sizeof(double), peer, kTag);
  }
  message.wait("the comparison of clocks", world().timeout());
}

}  // namespace

double steady_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double clock_offset_us(const Group& group, const std::function<double()>& clock) {
  barrier_on_host(group);
  if (group.rank == 0) {  // answers one rank after the other with the time
    for (int r = 1; r < group.size(); ++r) {
      for (int round = 0; round < kRounds; ++round) {
        double time = 0;
        exchange(&time, group.ranks[static_cast<std::size_t>(r)], false);
        time = clock();
        exchange(&time, group.ranks[static_cast<std::size_t>(r)], true);
      }
    }
    return 0;
  }
  double offset = 0, quickest = std::numeric_limits<double>::infinity();
  for (int round = 0; round < kRounds; ++round) {
    double time = 0;
    const double before = clock();
    exchange(&time, group.ranks[0], true);
    exchange(&time, group.ranks[0], false);
    const double after = clock();
    if (after - before >= quickest) continue;
    quickest = after - before;
    offset = time - (before + after) / 2;
  }
  return offset;
}

}  // namespace ref5d
