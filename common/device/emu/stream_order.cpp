#include "common/device/emu/stream_order.h"

#include <algorithm>
#include <set>

namespace ref5d::emu {
namespace {

struct TaskInfo {
  const std::string* name;
  const std::string* stream;
  unsigned slot;
};

struct Slot {
  bool used = false;
  TaskId last_run = 0;
};

// The one copy of a name.
const std::string* intern(const std::string& s) {
  static auto* const kNames = new std::set<std::string>;
  return &*kNames->insert(s).first;
}

struct World {
  std::vector<TaskInfo> tasks{{intern("nothing"), intern("none"), 0}};
  std::vector<Slot> slots;
  std::vector<const std::string*> names;  // of the streams, by slot
  Clock host;
  std::uint64_t host_version = 1;
  Task running;
};

World& world() {
  static World* const kWorld = new World;
  return *kWorld;
}

}  // namespace

void Clock::raise(unsigned slot, TaskId task) {
  if (slot >= last_.size()) last_.resize(slot + 1, 0);
  last_[slot] = std::max(last_[slot], task);
}

void Clock::join(const Clock& other) {
  for (unsigned slot = 0; slot < other.last_.size(); ++slot) raise(slot, other.last_[slot]);
}

StreamClock::StreamClock(const std::string& name) : known_(std::make_shared<Clock>()) {
  World& w = world();
  const auto free = std::find_if(w.slots.begin(), w.slots.end(), [](const Slot& s) { return !s.used; });
  slot_ = static_cast<unsigned>(free - w.slots.begin());
  if (free == w.slots.end()) {
    w.slots.emplace_back();
    w.names.push_back(nullptr);
  }
  w.slots[slot_].used = true;
  w.names[slot_] = intern(name);
}

StreamClock::~StreamClock() {
  host_waited();
  world().slots[slot_].used = false;
}

void StreamClock::learn_from_host() {
  if (host_version_ == world().host_version) return;
  host_version_ = world().host_version;
  join(world().host);
}

Task StreamClock::enqueue(const std::string& name) {
  learn_from_host();
  World& w = world();
  last_ = static_cast<TaskId>(w.tasks.size());
  w.tasks.push_back({intern(name), w.names[slot_], slot_});
  return {last_, slot_, known_};
}

Clock StreamClock::snapshot() {
  learn_from_host();
  Clock clock = *known_;
  clock.raise(slot_, last_);
  return clock;
}

void StreamClock::join(const Clock& clock) {
  auto joined = std::make_shared<Clock>(*known_);
  joined->join(clock);
  known_ = std::move(joined);
}

void StreamClock::host_waited() { host_waited_for(snapshot()); }

void host_waited_for(const Clock& clock) {
  world().host.join(clock);
  ++world().host_version;
}

Running::Running(const Task& task) : before_(world().running) {
  World& w = world();
  w.running = task;
  w.slots[task.slot].last_run = std::max(w.slots[task.slot].last_run, task.id);
}
Running::~Running() { world().running = before_; }

const Task& running() { return world().running; }
TaskId next_task() { return static_cast<TaskId>(world().tasks.size()); }

bool comes_before(TaskId task) {
  const World& w = world();
  const unsigned slot = w.tasks[task].slot;
  return slot == w.running.slot || task <= w.running.known->at(slot);
}

bool all_come_before() {
  const World& w = world();
  for (unsigned slot = 0; slot < w.slots.size(); ++slot)
    if (slot != w.running.slot && w.slots[slot].last_run > w.running.known->at(slot)) return false;
  return true;
}

const std::string& task_name(TaskId task) { return *world().tasks[task].name; }
unsigned stream_slot(TaskId task) { return world().tasks[task].slot; }
const std::string& stream_name(TaskId task) { return *world().tasks[task].stream; }

}  // namespace ref5d::emu
