// What comes before what on streams, whatever the order in which the executor happens to run it.
//
// Every piece of work is a task with a number. A stream knows, for every other stream, the last task that comes before what
// is enqueued next; it learns by waiting for an event, and from the host, which learns by waiting for a stream or an event
// (vector clocks). Two tasks of which neither knows the other may run in any order on a GPU, and must not touch the same
// memory.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/device/emu/access.h"

namespace ref5d::emu {

// Names of tasks that are no work of the program's.
inline constexpr char kAllocation[] = "allocation", kFree[] = "free";

// By stream slot: the last task known.
class Clock {
 public:
  [[nodiscard]] TaskId at(unsigned slot) const { return slot < last_.size() ? last_[slot] : 0; }
  void raise(unsigned slot, TaskId task);
  void join(const Clock& other);

 private:
  std::vector<TaskId> last_;
};

// What an entry of a stream's queue knows. Plain to copy.
struct Task {
  TaskId id = 0;
  unsigned slot = 0;
  std::shared_ptr<const Clock> known;
};

// A stream's part. Slots of streams that are gone are taken again: the host has waited for their work.
class StreamClock {
 public:
  explicit StreamClock(const std::string& name);
  ~StreamClock();
  StreamClock(const StreamClock&) = delete;
  StreamClock& operator=(const StreamClock&) = delete;

  // A new task at the stream's end.
  [[nodiscard]] Task enqueue(const std::string& name);
  // All that is enqueued so far; for events.
  [[nodiscard]] Clock snapshot();
  // What is enqueued from now on comes after that.
  void join(const Clock& clock);
  // The host has waited for everything that is enqueued so far.
  void host_waited();

 private:
  void learn_from_host();
  unsigned slot_;
  std::shared_ptr<const Clock> known_;
  TaskId last_ = 0;
  std::uint64_t host_version_ = 0;
};
void host_waited_for(const Clock& clock);

// The task that runs now, from the executor's start of it to its end.
class Running {
 public:
  explicit Running(const Task& task);
  ~Running();
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

 private:
  Task before_;
};
[[nodiscard]] const Task& running();
// The number of the next one to be enqueued.
[[nodiscard]] TaskId next_task();
// Whether `task`, which has run, comes before the one that runs now.
[[nodiscard]] bool comes_before(TaskId task);
// Whether that holds for all that has run.
[[nodiscard]] bool all_come_before();
[[nodiscard]] const std::string& task_name(TaskId task);
[[nodiscard]] const std::string& stream_name(TaskId task);
[[nodiscard]] unsigned stream_slot(TaskId task);

}  // namespace ref5d::emu
