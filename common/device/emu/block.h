// Runs a kernel: its blocks one after the other, a block's threads as fibers that go on until they wait for each other.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "common/device/emu/fault.h"
#include "common/device/emu/fiber.h"
#include "common/device/emu/random.h"
#include "common/device/emu/shadow.h"

namespace ref5d::emu {

// A place in the source, and the calls that led there: addresses in the program, the innermost first, 0 where they end.
struct Site {
  const char* file = nullptr;
  int number = 0;  // of the line
  std::array<std::uint32_t, 8> calls{};
  [[nodiscard]] bool same_line(const Site& o) const { return file == o.file && number == o.number; }
  // "a.h:12 from b.cu:34".
  [[nodiscard]] std::string describe() const;
};

enum class WarpKind { kSync, kShuffle, kBallot };
// What a thread brings to an operation of its warp, and takes away.
struct WarpOperation {
  WarpKind kind{};
  std::uint32_t mask = 0;
  int source = 0;           // kShuffle: the lane whose value it takes
  std::uint64_t value = 0;  // kBallot: not 0 votes yes
  std::uint64_t result = 0;
};

struct Thread {
  enum class State { kReady, kAtBarrier, kInWarp, kDone };
  Fiber fiber;
  Access self;
  State state = State::kReady;
  Site site;                   // where it waits
  std::uint64_t accesses = 0;  // to memory, in this block
  WarpOperation operation;
};

struct Launch {
  const std::string* name;
  std::array<unsigned, 3> grid;
  unsigned threads;
  std::size_t dynamic_bytes;
  void (*call)(const void* args);  // the kernel, for the current thread
  const void* args;
};

// Runs it all in the running task. Throws EmulatorError at the first fault.
void run_kernel(const Launch& launch);
// Of a launch, before it is queued: what no GPU could run. EmulatorError.
void check_resources(const Launch& launch);

inline constexpr std::uint64_t kStretch = 4096;
// A thread that touches memory more often than this waits for something that does not come. (For tests.)
extern std::uint64_t max_accesses;

class Block {
 public:
  [[nodiscard]] static Block& current();

  void run(const Launch& launch);

  // Called by the threads.
  void barrier(const Site& site);
  std::uint64_t warp(const WarpOperation& operation, const Site& site);
  [[nodiscard]] std::uint32_t active_lanes();
  void pass();  // lets others run
  // Called every kStretch accesses: a thread that waits for another one's store must let it run.
  void after_stretch();
  void maybe_pass();
  void* shared_array(const void* tag, std::size_t bytes, std::size_t alignment);
  [[nodiscard]] void* dynamic_shared() const;
  [[noreturn]] void fail(const BadAccess& bad);
  // The thread's stack is left as it is: the caller must own no memory any more.
  [[noreturn]] void fail(Fault fault, std::string&& what);

  [[nodiscard]] const Launch& launch() const { return *launch_; }
  [[nodiscard]] const std::array<unsigned, 3>& index() const { return index_; }
  // Of the threads that wait or have left, for messages: "threads 0-15 wait at a.cu:12".
  [[nodiscard]] std::string who_waits_where() const;

 private:
  struct SharedArray {
    const void* tag;
    std::uintptr_t at;
    std::size_t bytes;
  };
  void run_block(std::uint64_t linear);
  void run_threads();
  void release_barrier();
  [[nodiscard]] bool same_barrier() const;
  [[nodiscard]] bool complete_warp_operation(Thread& last);
  void fail_at_missing_lane(const Thread& waiting);
  void make_ready(Thread& t);
  [[nodiscard]] bool none_ready() const { return first_ready_ == ready_.size(); }
  [[nodiscard]] Thread* next();
  void park();
  [[noreturn]] void finish();
  [[noreturn]] void leave_to_host();
  static void thread_main();
  std::uintptr_t place_shared(const void* tag, std::size_t bytes, std::size_t alignment);

  const Launch* launch_ = nullptr;
  std::array<unsigned, 3> index_{};
  std::vector<Thread> threads_;
  std::vector<Thread*> ready_;   // from first_ready_ on
  std::size_t first_ready_ = 0;  // grows in order only
  std::size_t done_ = 0;
  bool in_order_ = true, last_first_ = false;
  Random random_{0};
  Fiber host_;
  std::vector<SharedArray> shared_;
  std::uintptr_t shared_end_ = 0;
  std::size_t static_bytes_ = 0;
  BadAccess bad_;
  Fault fault_ = Fault::kNone;
  std::string what_;
};

// The thread that runs now; null outside of kernels.
// (No thread_local variable: a store beyond a __shared__ one may hit its neighbour.)
extern constinit Thread* current_thread;

}  // namespace ref5d::emu
