#include "common/device/emu/block.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "common/device/emu/launches.h"
#include "common/device/emu/stream_order.h"

namespace ref5d::emu {

constinit Thread* current_thread = nullptr;
std::uint64_t max_accesses = std::uint64_t{1} << 28;

namespace {

// What every GPU since sm_80 has: without asking 48 KiB of shared memory, by asking 99 KiB in all.
constexpr std::size_t kMaxStaticShared = 48 * 1024, kMaxShared = 99 * 1024;

}  // namespace

std::map<std::string, LargestLaunch>& largest_launches() {
  static auto* const kLaunches = new std::map<std::string, LargestLaunch>;
  return *kLaunches;
}

namespace {
// The thread's stack is no good any more, and what it has overwritten nobody knows: the program ends.
void end_at_stack_overflow() {
  const Thread* const t = current_thread;
  if (t == nullptr) return;
  const auto& [x, y, z] = Block::current().index();
  const std::string line =
      fmt::format("stack overflow in {}, block ({},{},{}), thread {}: its local variables take more than {} bytes\n",
                  task_name(t->self.task), x, y, z, +t->self.thread, kStackBytes);
  (void)!write(STDERR_FILENO, line.data(), line.size());
  _exit(kExitBroken);
}
}  // namespace

Block& Block::current() {
  static Block* const kBlock = [] {
    on_stack_overflow(end_at_stack_overflow);
    return new Block;
  }();
  return *kBlock;
}

void check_resources(const Launch& l) {
  if (l.threads == 0 || l.threads > kMaxThreads) {
    throw EmulatorError(Fault::kResources, fmt::format("{} asks for {} threads in a block; a GPU has from 1 to {}", *l.name,
                                                       l.threads, kMaxThreads));
  }
  if (l.dynamic_bytes > kMaxShared) {
    throw EmulatorError(Fault::kResources, fmt::format("{} asks for {} bytes of shared memory; every GPU since sm_80 has {}",
                                                       *l.name, l.dynamic_bytes, kMaxShared));
  }
}

void run_kernel(const Launch& launch) { Block::current().run(launch); }

void Block::run(const Launch& launch) {
  launch_ = &launch;
  const std::uint64_t total = std::uint64_t{launch.grid[0]} * launch.grid[1] * launch.grid[2];
  LargestLaunch& largest = largest_launches()[*launch.name];
  largest = {std::max(largest.blocks, total), std::max(largest.threads, launch.threads)};
  in_order_ = seed() == 0;
  random_ = Random(draw_for_launch());
  shared_end_ = kMemory;
  static_bytes_ = 0;
  if (launch.dynamic_bytes > 0) (void)place_shared(this, launch.dynamic_bytes, 16);

  struct Clean {  // whatever happens, the next kernel starts afresh
    Block& block;
    ~Clean() {
      current_thread = nullptr;
      for (const SharedArray& a : block.shared_) mark_gone(a.at, a.bytes, kNobodys);
      block.shared_.clear();
    }
  } clean{*this};
  if (in_order_) {
    for (std::uint64_t b = 0; b < total; ++b) run_block(b);
    return;
  }
  std::vector<std::uint32_t> order(total);
  std::iota(order.begin(), order.end(), 0u);
  for (std::uint64_t i = total; i > 1; --i) std::swap(order[i - 1], order[random_.below(i)]);
  for (const std::uint32_t b : order) run_block(b);
}

void Block::run_block(std::uint64_t linear) {
  const auto& grid = launch_->grid;
  index_ = {static_cast<unsigned>(linear % grid[0]), static_cast<unsigned>(linear / grid[0] % grid[1]),
            static_cast<unsigned>(linear / grid[0] / grid[1])};
  if (threads_.size() < launch_->threads) threads_.resize(launch_->threads);
  done_ = 0;
  last_first_ = !in_order_ && random_.below(4) == 0;
  ready_.clear();
  first_ready_ = 0;
  for (unsigned i = 0; i < launch_->threads; ++i) {
    Thread& t = threads_[i];
    t.self = {.task = running().id, .block = static_cast<std::uint32_t>(linear), .thread = i};
    t.accesses = 0;
    prepare(t.fiber, i, thread_main);
    make_ready(t);
  }
  run_threads();
}

void Block::run_threads() {
  fault_ = Fault::kNone;
  while (true) {
    if (Thread* const t = next()) {
      current_thread = t;
      switch_to(host_, t->fiber);
      current_thread = nullptr;
    }
    if (bad_.fault != Fault::kNone) throw_bad_access(std::exchange(bad_, {}));
    if (fault_ != Fault::kNone) throw_fault(fault_, std::exchange(what_, {}));
    if (done_ == launch_->threads) return;
    if (none_ready()) release_barrier();
  }
}

// Nobody can go on: either everybody waits at one barrier, or somebody waits for ever.
void Block::release_barrier() {
  for (unsigned i = 0; i < launch_->threads; ++i)
    if (threads_[i].state == Thread::State::kInWarp) fail_at_missing_lane(threads_[i]);
  if (done_ > 0)
    throw_fault(Fault::kEarlyExit, "some threads have left the kernel while others wait for them: " + who_waits_where());
  if (!same_barrier())
    throw_fault(Fault::kBarrierDivergence, "the threads of a block wait at different barriers: " + who_waits_where());
  for (unsigned i = 0; i < launch_->threads; ++i) {
    Thread& t = threads_[i];
    if (t.self.barrier == kMaxBarriers) throw_fault(Fault::kResources, "more barriers in a block than the emulator can count");
    ++t.self.barrier;
    ++t.self.warp_step;
    make_ready(t);
  }
}

// The compiler may have made several copies of one barrier, and a function with a barrier may be called at several lines: where
// the addresses differ, the lines decide.
bool Block::same_barrier() const {
  const Site& first = threads_[0].site;
  return std::all_of(threads_.begin() + 1, threads_.begin() + launch_->threads, [&](const Thread& t) {
    return t.site.same_line(first) && (t.site.calls == first.calls || t.site.describe() == first.describe());
  });
}

std::string Site::describe() const {
  std::string lines;
  for (const std::uint32_t pc : calls) {
    const std::string line = describe_line(pc);
    if (!line.empty()) lines += (lines.empty() ? "" : " from ") + line;
  }
  return lines.empty() ? fmt::format("{}:{}", file, number) : lines;
}

void Block::make_ready(Thread& t) {
  t.state = Thread::State::kReady;
  if (none_ready()) ready_.clear(), first_ready_ = 0;
  ready_.push_back(&t);
}

// In order: the first that became ready. Otherwise any, or in some blocks the last.
Thread* Block::next() {
  if (none_ready()) return nullptr;
  if (in_order_) return ready_[first_ready_++];
  if (!last_first_) std::swap(ready_[random_.below(ready_.size())], ready_.back());
  Thread* const t = ready_.back();
  ready_.pop_back();
  return t;
}

// The current thread waits; another one goes on, or the host if nobody can.
void Block::park() {
  Thread& self = *current_thread;
  Thread* const other = next();
  current_thread = other;
  switch_to(self.fiber, other != nullptr ? other->fiber : host_);
}

void Block::finish() {
  Thread& self = *current_thread;
  self.state = Thread::State::kDone;
  ++done_;
  Thread* const other = next();
  current_thread = other;
  leave(self.fiber, other != nullptr ? other->fiber : host_);
}

void Block::leave_to_host() {
  Thread& self = *current_thread;
  current_thread = nullptr;  // what runs until the switch is the emulator's own
  leave(self.fiber, host_);
}

void Block::thread_main() {
  Block& block = current();
  block.launch_->call(block.launch_->args);
  block.finish();
}

void Block::barrier(const Site& site) {
  Thread& self = *current_thread;
  self.site = site;
  self.state = Thread::State::kAtBarrier;
  park();
}

void Block::pass() {
  Thread& self = *current_thread;
  Thread* const other = next();
  if (other == nullptr) return;
  make_ready(self);
  current_thread = other;
  switch_to(self.fiber, other->fiber);
}

void Block::after_stretch() {
  if (current_thread->accesses > max_accesses) {
    std::string what =
        fmt::format("thread {} has touched memory or met its warp {} times without an end; it last touched memory at {}",
                    +current_thread->self.thread, current_thread->accesses, describe_line(current_thread->self.pc));
    fail(Fault::kEndless, std::move(what));
  }
  pass();
}

void Block::maybe_pass() {
  if (!in_order_ && random_.below(2) == 0) pass();
}

void Block::fail(const BadAccess& bad) {
  bad_ = bad;
  leave_to_host();
}
void Block::fail(Fault fault, std::string&& what) {
  fault_ = fault;
  what_ = std::move(what);
  leave_to_host();
}

std::uintptr_t Block::place_shared(const void* tag, std::size_t bytes, std::size_t alignment) {
  // Aligned as asked for and no better, with room between that belongs to nobody.
  std::uintptr_t at = (shared_end_ + 64 + 63) / 64 * 64;
  if (alignment < 64) at += std::max<std::size_t>(alignment, 4);
  mark_live(at, bytes);
  std::memset(reinterpret_cast<void*>(at), 0xff, bytes);
  shared_.push_back({tag, at, bytes});
  shared_end_ = at + bytes;
  return at;
}

void* Block::shared_array(const void* tag, std::size_t bytes, std::size_t alignment) {
  for (const SharedArray& a : shared_)
    if (a.tag == tag) return reinterpret_cast<void*>(a.at);
  static_bytes_ += bytes;
  if (static_bytes_ > kMaxStaticShared || static_bytes_ + launch_->dynamic_bytes > kMaxShared) {
    std::string what =
        fmt::format("its arrays take {} bytes of shared memory; a GPU has {} for arrays of fixed size and {} in all",
                    static_bytes_ + launch_->dynamic_bytes, kMaxStaticShared, kMaxShared);
    fail(Fault::kResources, std::move(what));
  }
  return reinterpret_cast<void*>(place_shared(tag, bytes, alignment));
}

void* Block::dynamic_shared() const {
  for (const SharedArray& a : shared_)
    if (a.tag == this) return reinterpret_cast<void*>(a.at);
  return reinterpret_cast<void*>(kMemory + kSharedBytes - 64);  // nobody's
}

std::string Block::who_waits_where() const {
  const auto where = [](const Thread& t) -> std::string {
    if (t.state == Thread::State::kDone) return "gone";
    const char* const for_whom = t.state == Thread::State::kInWarp ? " for the warp" : "";
    return fmt::format("waiting{} at {}", for_whom, t.site.describe());
  };
  const auto together = [](const Thread& a, const Thread& b) {
    return a.state == b.state &&
           (a.state == Thread::State::kDone || (a.site.same_line(b.site) && a.site.calls == b.site.calls));
  };
  std::string all;
  for (unsigned i = 0, end = 0; i < launch_->threads; i = end) {
    if (all.size() > 300) return all + ", ...";
    for (end = i + 1; end < launch_->threads && together(threads_[i], threads_[end]);) ++end;
    const std::string who = end == i + 1 ? fmt::format("thread {}", i) : fmt::format("threads {}-{}", i, end - 1);
    all += fmt::format("{}{} {}", all.empty() ? "" : ", ", who, where(threads_[i]));
  }
  return all;
}

}  // namespace ref5d::emu
