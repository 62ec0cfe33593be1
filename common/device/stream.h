// Streams and events, with CUDA's meaning in every mode: work on one stream runs in order, work on different streams
// in any order that events allow. On the CPU these are real queues (cpu/executor.h), so a forgotten wait is a wrong
// result there too.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

namespace ref5d {

class Stream {
 public:
  explicit Stream(std::string name);
  ~Stream();  // waits for the work that is queued
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // The host waits until everything enqueued so far has run. Throws what the work threw.
  void synchronize();
  [[nodiscard]] const std::string& name() const { return name_; }

  struct Impl;
  [[nodiscard]] Impl& impl() const { return *impl_; }

 private:
  std::string name_;
  std::unique_ptr<Impl> impl_;
};

// A point in a stream's work. Waiting on an event that was never recorded is a no-op, as in CUDA.
// One that was moved from may only be assigned to or destroyed.
class Event {
 public:
  Event();
  ~Event();
  Event(Event&&) noexcept;
  Event& operator=(Event&&) noexcept;

  void record(Stream& stream);
  [[nodiscard]] bool done() const;
  void synchronize() const;  // the host waits

  struct Impl;
  [[nodiscard]] Impl& impl() const { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

// What is enqueued on `stream` from now on runs after the event's last record.
void wait(Stream& stream, const Event& event);
// `later` continues after everything enqueued on `earlier` so far.
void order(Stream& earlier, Stream& later);

// Runs `task` on the host, in the stream's order. It must not call the device layer. What it throws surfaces at the host's
// next wait, as with all work.
void host_task(Stream& stream, const std::string& name, std::function<void()> task);

// Copies. copy_to_device from ordinary memory: the source may be reused at once. copy_pinned_to_device is asynchronous:
// the source (a PinnedBuffer) must stay unchanged until the stream has passed. copy_to_pinned is asynchronous, too: the data is
// in the PinnedBuffer once the stream has passed. copy_to_host returns when the data is there.
void copy_to_device(Stream& stream, void* to, const void* from, std::size_t bytes);
void copy_pinned_to_device(Stream& stream, void* to, const void* from, std::size_t bytes);
void copy_to_pinned(Stream& stream, void* to, const void* from, std::size_t bytes);
void copy_to_host(Stream& stream, void* to, const void* from, std::size_t bytes);
void copy_on_device(Stream& stream, void* to, const void* from, std::size_t bytes);
void fill_zero(Stream& stream, void* to, std::size_t bytes);

}  // namespace ref5d
