// The CPU's streams: queues of work, run by one thread when the host waits for something (or has run far ahead).
//
// The executor always runs what is ready: the entry at the head of a stream, unless that is a wait whose event has not
// happened. Among ready streams the newest comes first, so work on a side stream that forgot to wait for the main stream
// runs too early and is a wrong result, as it would be on a GPU. An entry of communication (polled.h) is started once and
// then polled; kernels of other streams run meanwhile.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <string>

#include "common/device/cpu/observe.h"
#include "common/device/stream.h"

namespace ref5d::cpu {

// Work that runs to its end. `name` is copied.
void enqueue(Stream& stream, const std::string& name, std::function<void()> work);

// Runs ready work until `done` says true. Throws RunError if nothing can ever become ready.
void run_until(const std::function<bool()>& done);

// Runs everything that is queued on any stream.
void drain();

// Gives pending communication a chance to move on: runs at most one ready entry of any stream, polls the rest.
void make_progress();

// For tests. 0: the newest ready stream goes first. Any other: the ready streams in an order drawn from the seed, another one
// at each step.
void set_order_seed(std::uint64_t seed);

// Where nothing may be thrown: what the work throws surfaces at the host's next wait.
void keep_errors_of(const std::function<void()>& work) noexcept;
// For memory that is freed in a stream's order. What is thrown on the way surfaces at the host's next wait.
void enqueue_free(Stream& stream, std::function<void()> free) noexcept;
// Whether the stream has not been destroyed, for memory that outlives it.
[[nodiscard]] bool exists(const Stream& stream);
// Stands for the allocation of memory on a stream.
[[nodiscard]] emu::Task allocation_task(Stream& stream);

// Gives the memory of a stream that is going back to the host. Its work must be done.
void free_pool(const Stream& stream);

// An exception must not leave a parallel region: the first is kept here, and thrown again after the region.
class RegionError {
 public:
  template <typename Work>
  void guard(Work&& work) noexcept {
    try {
      work();
    } catch (...) {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!error_) error_ = std::current_exception();
    }
  }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr error_;
};

// Threads that a kernel's blocks are spread over.
[[nodiscard]] int kernel_threads();
void set_kernel_threads(int n);

}  // namespace ref5d::cpu
