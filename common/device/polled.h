// Work that the host starts in its stream's turn and that is complete when a poll says so: communication.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "common/device/stream.h"

namespace ref5d {

struct PolledWork {
  std::string name;             // in profiles and errors
  std::function<void()> start;  // once. Neither may block or call the device layer
  std::function<bool()> poll;   // until it says true
  // Works with the same key start in the order in which they were enqueued, whatever their streams: ranks that start two
  // operations of one communicator in different orders get wrong sums. Any address that stands for the communicator.
  // Null: the stream's order alone.
  const void* order_key = nullptr;
  // How long it may be polled; 0: for ever. Time that the host spends elsewhere hardly counts (detail::Patience).
  std::chrono::nanoseconds timeout{0};
  std::int64_t bytes = 0;  // that it sends, for virtual time (timeline.h)
};

// What is enqueued on `stream` later runs when the work is complete. An error of start or poll, or a time-out (RunError, with
// the work's name), surfaces at a wait of the host; the work is gone then. On the CPU work of other streams runs meanwhile; on
// a GPU the host waits here, so that nothing overlaps: a work must not need anything that this rank enqueues after it (a send
// and a receive that two ranks post to each other belong into one work).
void enqueue_polled(Stream& stream, PolledWork work);

namespace detail {
// Counts how long a work has been polled. A gap between two polls counts for a tenth of the timeout at most: a host that was
// busy elsewhere (a save, a long kernel) has not waited.
class Patience {
 public:
  void begin() { last_ = std::chrono::steady_clock::now(); }
  // After a poll that found the work not complete; throws when its time is over.
  void check(const PolledWork& work);

 private:
  std::chrono::steady_clock::time_point last_{};
  std::chrono::nanoseconds waited_{0};
};
// After the idle-th poll in a row that found nothing new.
void back_off(int idle);
}  // namespace detail

}  // namespace ref5d
