#include "common/device/cpu/executor.h"

#include <time.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "common/device/cpu/observe.h"
#include "common/device/device.h"
#include "common/device/error.h"
#include "common/device/polled.h"

namespace ref5d {

namespace {

struct Entry {
  enum class Kind { kWork, kPolled, kRecord, kWait } kind;
  PolledWork work;                 // kWork: of this only the name and `start`, which is all there is to do
  std::shared_ptr<bool> happened;  // kRecord sets it, kWait waits for it
  emu::Task task{};                // kWork, kPolled
  bool started = false;            // kPolled
  std::chrono::steady_clock::time_point begin{};
  detail::Patience patience{};
  std::size_t recorded = 0;  // its place in the timeline, counted from 1
};

// Of this thread. Unlike the clock on the wall, it stands still while other ranks have the core.
double processor_us() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) / 1e3;
}

}  // namespace

struct Stream::Impl {
  explicit Impl(const std::string& n) : name(n), clock(n) {}
  std::string name;
  emu::StreamClock clock;
  std::deque<Entry> entries;
};

struct Event::Impl {
  std::shared_ptr<bool> happened;  // of the last record; null if never recorded
  emu::Clock clock;
};

namespace cpu {
namespace {

// The host may run this many entries ahead before it has to work some off.
constexpr std::size_t kRunAhead = 4096;

class Executor {
 public:
  Executor() { set_order_seed(emu::seed()); }
  void add(Stream::Impl* s) { streams_.push_back(s); }
  // What is still queued is dropped. Nobody waits for it then.
  void remove(Stream::Impl* s) {
    for (const Entry& e : s->entries) {
      if (e.kind == Entry::Kind::kRecord) *e.happened = true;
      if (e.kind == Entry::Kind::kPolled && !e.started) take_turn(e);
    }
    pending_ -= s->entries.size();
    std::erase(streams_, s);
  }

  void push(Stream::Impl& s, Entry e) {
    if (e.kind == Entry::Kind::kWork || e.kind == Entry::Kind::kPolled) e.task = s.clock.enqueue(e.work.name);
    if (device().timeline().on()) record(s, e);
    s.entries.push_back(std::move(e));
    const Entry& pushed = s.entries.back();
    if (pushed.work.order_key != nullptr) turns_[pushed.work.order_key].push_back(&pushed);
    if (++pending_ > kRunAhead && !stepping_) {
      run_until([this] { return pending_ <= kRunAhead / 2; });
    } else if (shuffled_ && draw(4) == 0) {
      run_early();
    }
  }

  // Throws what work threw, also the first error that a destructor met and could not pass on.
  void run_until(const std::function<bool()>& done) {
    rethrow_kept();
    run_on(done);
    rethrow_kept();
  }
  void keep(std::exception_ptr error) {
    if (!kept_) kept_ = std::move(error);
  }

  void run_on(const std::function<bool()>& done) {
    int idle = 0;
    while (!done()) {
      switch (step()) {
        case Progress::kMade: idle = 0; break;
        case Progress::kWaiting: detail::back_off(++idle); break;
        case Progress::kNone: throw RunError("the streams wait for each other: no work is ready and none is in flight");
      }
    }
  }

  // For everything.
  void host_waited() {
    for (Stream::Impl* s : streams_) s->clock.host_waited();
  }

  [[nodiscard]] bool empty() const { return pending_ == 0; }
  [[nodiscard]] std::size_t pending() const { return pending_; }
  void set_order_seed(std::uint64_t seed) {
    shuffled_ = seed != 0;
    random_.seed(seed);
  }

  enum class Progress { kMade, kWaiting, kNone };
  // One entry of the first stream that is ready; otherwise says whether communication is in flight. In an order drawn from a
  // seed communication is often not asked, so that it completes late, unless nothing else is left to do.
  Progress step() {
    if (shuffled_ && step(true) == Progress::kMade) return Progress::kMade;
    return step(false);
  }

 private:
  // Into the timeline. An event is known by the flag that says whether it has happened.
  static void record(const Stream::Impl& s, Entry& e) {
    using Kind = TimelineEntry::Kind;
    constexpr Kind kKinds[] = {Kind::kWork, Kind::kCommunication, Kind::kRecord, Kind::kWait};
    Timeline& timeline = device().timeline();
    e.recorded =
        1 + timeline.add({kKinds[static_cast<int>(e.kind)], timeline.stream(s.name), e.work.name, 0, e.work.bytes, e.happened});
  }

  Progress step(bool late) {
    stepping_ = true;
    const struct Done {
      bool& stepping;
      ~Done() { stepping = false; }
    } done{stepping_};
    bool in_flight = false;
    candidates_.assign(streams_.rbegin(), streams_.rend());
    if (shuffled_) std::shuffle(candidates_.begin(), candidates_.end(), random_);
    for (Stream::Impl* candidate : candidates_) {
      Stream::Impl& s = *candidate;
      if (s.entries.empty()) continue;
      Entry& head = s.entries.front();
      if (head.kind == Entry::Kind::kWait && !*head.happened) continue;
      if (head.kind == Entry::Kind::kPolled) {
        const bool first = !head.started;
        if (first && !has_turn(head)) continue;
        if (late && !first && draw(4) != 0) {
          in_flight = true;
          continue;
        }
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

  std::uint64_t draw(std::uint64_t n) { return random_() % n; }

  // A device does not wait until the host does. What is thrown surfaces at the host's next wait.
  void run_early() {
    if (stepping_) return;  // work that frees memory is running
    try {
      (void)step();
    } catch (...) {
      keep(std::current_exception());
    }
  }

  void rethrow_kept() {
    if (kept_) std::rethrow_exception(std::exchange(kept_, nullptr));
  }
  Entry pop(Stream::Impl& s) {
    Entry e = std::move(s.entries.front());
    s.entries.pop_front();
    --pending_;
    return e;
  }

  // Whether no work with the same key was enqueued earlier and has not started. The earlier one can always come to start: what
  // it waits for was enqueued earlier still.
  [[nodiscard]] bool has_turn(const Entry& e) const {
    return e.work.order_key == nullptr || turns_.at(e.work.order_key).front() == &e;
  }
  // Lets the next one with this key start.
  void take_turn(const Entry& e) {
    if (e.work.order_key == nullptr) return;
    const auto at = turns_.find(e.work.order_key);
    std::erase(at->second, &e);
    if (at->second.empty()) turns_.erase(at);
  }

  // Starts a polled entry or asks how it is; true when it is through. One that throws is gone, like any other work.
  bool advance(Stream::Impl& s, Entry& head) {
    try {
      const emu::Running running(head.task);
      if (!head.started) {
        take_turn(head);
        head.started = true;
        head.begin = std::chrono::steady_clock::now();
        head.patience.begin();
        head.work.start();
      }
      if (head.work.poll()) return true;
      head.patience.check(head.work);
      return false;
    } catch (...) {
      pop(s);
      throw;
    }
  }

  void run_head(Stream::Impl& s) {
    Entry e = pop(s);  // first, so that an entry that throws is gone
    if (e.kind == Entry::Kind::kRecord) *e.happened = true;
    if (e.kind != Entry::Kind::kWork) return;
    const emu::Running running(e.task);
    Timeline& timeline = device().timeline();
    const bool timed = timeline.on() && e.recorded > 0;
    if (!device().profiler().on() && !timed) return e.work.start();
    e.begin = std::chrono::steady_clock::now();
    const double before = timed ? processor_us() : 0;
    e.work.start();
    if (timed) timeline.took(e.recorded - 1, processor_us() - before);
    record_span(s, e, std::chrono::steady_clock::now());
  }

  static void record_span(const Stream::Impl& s, const Entry& e, std::chrono::steady_clock::time_point end) {
    if (device().profiler().on()) device().profiler().add(s.name, e.work.name, e.begin, end);
  }

  std::vector<Stream::Impl*> streams_, candidates_;
  std::map<const void*, std::deque<const Entry*>> turns_;  // by order key: works that have not started, as enqueued
  std::mt19937_64 random_;
  bool shuffled_ = false, stepping_ = false;
  std::size_t pending_ = 0;
  std::exception_ptr kept_;
};

Executor& executor() {
  static Executor* const kExecutor = new Executor;
  return *kExecutor;
}

int kernel_thread_count = 1;

}  // namespace

void enqueue(Stream& stream, const std::string& name, std::function<void()> work) {
  executor().push(stream.impl(), {Entry::Kind::kWork, {name, std::move(work), {}}, {}});
}

void keep_errors_of(const std::function<void()>& work) noexcept {
  try {
    work();
  } catch (...) {
    executor().keep(std::current_exception());
  }
}

void enqueue_free(Stream& stream, std::function<void()> free) noexcept {
  keep_errors_of([&] { enqueue(stream, "free", std::move(free)); });
}

namespace {
std::set<const Stream*>& live_streams() {
  static auto* const kLive = new std::set<const Stream*>;
  return *kLive;
}
}  // namespace
bool exists(const Stream& stream) { return live_streams().contains(&stream); }

emu::Task allocation_task(Stream& stream) { return stream.impl().clock.enqueue("allocation"); }

void run_until(const std::function<bool()>& done) { executor().run_until(done); }

void drain() {
  executor().run_until([] { return executor().empty(); });
  executor().host_waited();
}

void set_order_seed(std::uint64_t seed) { executor().set_order_seed(seed); }

void make_progress() { (void)executor().step(); }

int kernel_threads() { return kernel_thread_count; }
void set_kernel_threads(int n) { kernel_thread_count = n; }

}  // namespace cpu

Stream::Stream(std::string name) : name_(std::move(name)), impl_(std::make_unique<Impl>(name_)) {
  cpu::executor().add(impl_.get());
  cpu::live_streams().insert(this);
}

Stream::~Stream() {
  // While an error ends the program nobody needs the work, and communication with a rank that is gone would wait for ever.
  const bool unwinding = std::uncaught_exceptions() > 0;
  while (!unwinding && !impl_->entries.empty()) {
    const std::size_t before = cpu::executor().pending();
    try {
      cpu::executor().run_on([this] { return impl_->entries.empty(); });
    } catch (...) {
      // A destructor has nobody to tell: the next wait of the host throws it. The work after it still runs.
      cpu::executor().keep(std::current_exception());
      if (cpu::executor().pending() == before) break;
    }
  }
  if (impl_->entries.empty()) cpu::free_pool(*this);
  cpu::executor().remove(impl_.get());
  cpu::live_streams().erase(this);
}

void Stream::synchronize() {
  Impl& s = *impl_;
  cpu::executor().run_until([&s] { return s.entries.empty(); });
  s.clock.host_waited();
}

Event::Event() : impl_(std::make_unique<Impl>()) {}
Event::~Event() = default;
Event::Event(Event&&) noexcept = default;
Event& Event::operator=(Event&&) noexcept = default;

void Event::record(Stream& stream) {
  impl_->happened = std::make_shared<bool>(false);
  impl_->clock = stream.impl().clock.snapshot();
  cpu::executor().push(stream.impl(), {Entry::Kind::kRecord, {}, impl_->happened});
}

bool Event::done() const {
  const bool happened = !impl_->happened || *impl_->happened;
  if (happened) emu::host_waited_for(impl_->clock);
  return happened;
}

void Event::synchronize() const {
  cpu::run_until([this] { return done(); });
}

void wait(Stream& stream, const Event& event) {
  if (!event.impl().happened) return;
  stream.impl().clock.join(event.impl().clock);
  cpu::executor().push(stream.impl(), {Entry::Kind::kWait, {}, event.impl().happened});
}

void host_task(Stream& stream, const std::string& name, std::function<void()> task) {
  cpu::enqueue(stream, name, std::move(task));
}

void enqueue_polled(Stream& stream, PolledWork work) {
  cpu::executor().push(stream.impl(), {Entry::Kind::kPolled, std::move(work), {}});
}

}  // namespace ref5d
