#include "common/device/cpu/executor.h"

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <memory>
#include <vector>

#include "common/device/device.h"
#include "common/device/error.h"

namespace ref5d {

namespace {

struct Entry {
  enum class Kind { kWork, kPolled, kRecord, kWait } kind;
  std::string name;
  std::function<void()> work;      // kWork; kPolled: start
  std::function<bool()> poll;      // kPolled
  std::shared_ptr<bool> happened;  // kRecord sets it, kWait waits for it
  bool started = false;
  std::chrono::steady_clock::time_point begin{};
};

}  // namespace

struct Stream::Impl {
  explicit Impl(const std::string& n) : name(n) {}
  std::string name;
  std::deque<Entry> entries;
};

struct Event::Impl {
  std::shared_ptr<bool> happened;  // of the last record; null if never recorded
};

namespace cpu {
namespace {

// The host may run this many entries ahead before it has to work some off.
constexpr std::size_t kRunAhead = 4096;

class Executor {
 public:
  void add(Stream::Impl* s) { streams_.push_back(s); }
  void remove(Stream::Impl* s) {
    pending_ -= s->entries.size();
    std::erase(streams_, s);
  }

  void push(Stream::Impl& s, Entry e) {
    s.entries.push_back(std::move(e));
    if (++pending_ > kRunAhead) {
      run_until([this] { return pending_ <= kRunAhead / 2; });
    }
  }

  void run_until(const std::function<bool()>& done) {
    int idle = 0;
    while (!done()) {
      switch (step()) {
        case Progress::kMade: idle = 0; break;
        case Progress::kWaiting: back_off(++idle); break;
        case Progress::kNone: throw RunError("the streams wait for each other: no work is ready and none is in flight");
      }
    }
  }

  [[nodiscard]] bool empty() const { return pending_ == 0; }
  [[nodiscard]] std::size_t pending() const { return pending_; }

  enum class Progress { kMade, kWaiting, kNone };
  // One entry of the newest stream that is ready; otherwise says whether communication is in flight.
  Progress step() {
    bool in_flight = false;
    for (auto it = streams_.rbegin(); it != streams_.rend(); ++it) {
      Stream::Impl& s = **it;
      if (s.entries.empty()) continue;
      Entry& head = s.entries.front();
      if (head.kind == Entry::Kind::kWait && !*head.happened) continue;
      if (head.kind == Entry::Kind::kPolled) {
        const bool first = !head.started;
        if (!advance(s, head)) {
          in_flight = true;
          if (first) return Progress::kMade;
          continue;
        }
        record_span(s, head, std::chrono::steady_clock::now());
        pop(s);
        return Progress::kMade;
      }
      run_head(s);
      return Progress::kMade;
    }
    return in_flight ? Progress::kWaiting : Progress::kNone;
  }

 private:
  Entry pop(Stream::Impl& s) {
    Entry e = std::move(s.entries.front());
    s.entries.pop_front();
    --pending_;
    return e;
  }

  // Starts a polled entry or asks how it is; true when it is through. One that throws is gone, like any other work.
  bool advance(Stream::Impl& s, Entry& head) {
    try {
      if (!head.started) {
        head.started = true;
        head.begin = std::chrono::steady_clock::now();
        head.work();
      }
      return head.poll();
    } catch (...) {
      pop(s);
      throw;
    }
  }

  void run_head(Stream::Impl& s) {
    Entry e = pop(s);  // first, so that an entry that throws is gone
    if (e.kind == Entry::Kind::kRecord) *e.happened = true;
    if (e.kind != Entry::Kind::kWork) return;
    if (!device().profiler().on()) return e.work();
    e.begin = std::chrono::steady_clock::now();
    e.work();
    record_span(s, e, std::chrono::steady_clock::now());
  }

  static void record_span(const Stream::Impl& s, const Entry& e, std::chrono::steady_clock::time_point end) {
    if (device().profiler().on()) device().profiler().add(s.name, e.name, e.begin, end);
  }

  // Spinning would take the core from the rank that we wait for.
  static void back_off(int idle) {
    if (idle <= 50) {
      sched_yield();
    } else {
      const timespec pause{0, 20'000};
      nanosleep(&pause, nullptr);
    }
  }

  std::vector<Stream::Impl*> streams_;
  std::size_t pending_ = 0;
};

Executor& executor() {
  static Executor* const kExecutor = new Executor;
  return *kExecutor;
}

int kernel_thread_count = 1;

}  // namespace

void enqueue(Stream& stream, const std::string& name, std::function<void()> work) {
  executor().push(stream.impl(), {Entry::Kind::kWork, name, std::move(work), {}, {}});
}

void enqueue_polled(Stream& stream, const std::string& name, std::function<void()> start, std::function<bool()> poll) {
  executor().push(stream.impl(), {Entry::Kind::kPolled, name, std::move(start), std::move(poll), {}});
}

void run_until(const std::function<bool()>& done) { executor().run_until(done); }

void drain() {
  executor().run_until([] { return executor().empty(); });
}

void make_progress() { (void)executor().step(); }

int kernel_threads() { return kernel_thread_count; }
void set_kernel_threads(int n) { kernel_thread_count = n; }

}  // namespace cpu

Stream::Stream(std::string name) : name_(std::move(name)), impl_(std::make_unique<Impl>(name_)) {
  cpu::executor().add(impl_.get());
}

Stream::~Stream() {
  while (!impl_->entries.empty()) {
    const std::size_t before = cpu::executor().pending();
    try {
      synchronize();
    } catch (...) {
      // The error belongs to whoever waits for the work; a destructor has nobody to tell. The work after it still runs.
      if (cpu::executor().pending() == before) break;
    }
  }
  cpu::executor().remove(impl_.get());
}

void Stream::synchronize() {
  Impl& s = *impl_;
  cpu::executor().run_until([&s] { return s.entries.empty(); });
}

Event::Event() : impl_(std::make_unique<Impl>()) {}
Event::~Event() = default;
Event::Event(Event&&) noexcept = default;
Event& Event::operator=(Event&&) noexcept = default;

void Event::record(Stream& stream) {
  impl_->happened = std::make_shared<bool>(false);
  cpu::executor().push(stream.impl(), {Entry::Kind::kRecord, "record", {}, {}, impl_->happened});
}

bool Event::done() const { return !impl_->happened || *impl_->happened; }

void Event::synchronize() const {
  cpu::run_until([this] { return done(); });
}

void wait(Stream& stream, const Event& event) {
  if (event.impl().happened) cpu::executor().push(stream.impl(), {Entry::Kind::kWait, "wait", {}, {}, event.impl().happened});
}

void host_task(Stream& stream, const std::string& name, std::function<void()> task) {
  cpu::enqueue(stream, name, std::move(task));
}

void copy_to_device(Stream& stream, void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  const auto* begin = static_cast<const std::byte*>(from);
  cpu::enqueue(stream, "copy to device",
               [to, staged = std::vector<std::byte>(begin, begin + bytes)] { std::memcpy(to, staged.data(), staged.size()); });
}

void copy_pinned_to_device(Stream& stream, void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) cpu::enqueue(stream, "copy to device", [=] { std::memcpy(to, from, bytes); });
}

void copy_to_host(Stream& stream, void* to, const void* from, std::size_t bytes) {
  stream.synchronize();
  if (bytes > 0) std::memcpy(to, from, bytes);
}

void copy_on_device(Stream& stream, void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) cpu::enqueue(stream, "copy", [=] { std::memcpy(to, from, bytes); });
}

void fill_zero(Stream& stream, void* to, std::size_t bytes) {
  if (bytes > 0) cpu::enqueue(stream, "fill zero", [=] { std::memset(to, 0, bytes); });
}

}  // namespace ref5d
