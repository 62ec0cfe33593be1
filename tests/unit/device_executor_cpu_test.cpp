// The CPU's streams: what a GPU does by luck, they do every time.
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>

#include "common/device/cpu/executor.h"
#include "common/device/cpu/observe.h"
#include "common/device/device.h"
#include "common/device/error.h"
#include "common/device/polled.h"
#include "tests/support/device_testing.h"
#include "tests/unit/device_kernels.h"

namespace ref5d {
namespace {

using testing::add_constant;
using testing::filled;
using testing::multiply;

// The order in which the newest ready stream goes first, whatever seed the emulator has been given.
class Executor : public ::testing::Test {
 protected:
  void SetUp() override { cpu::set_order_seed(0); }
  void TearDown() override { cpu::set_order_seed(emu::seed()); }
};

// Side streams run as early as their waits allow: without a wait y is made before x is ready. (The emulator does not let it
// come to that: EmulatorFaults has the same mistake.)
TEST_F(Executor, AForgottenWaitIsAWrongResult) {
  for (bool forgotten : {true, false}) {
    if (forgotten && Device::mode() == "emu") continue;
    Stream first("first"), second("second");
    const Tensor x = filled(1, first), y = filled(0, second);
    device().synchronize();
    add_constant(first, x, 1);
    if (!forgotten) order(first, second);
    multiply(second, y, x, 3);
    EXPECT_EQ(y.to_doubles(second)[0], forgotten ? 3 : 6);
  }
}

TEST_F(Executor, NothingRunsBeforeTheHostWaits) {
  Stream stream("test");
  int runs = 0;
  Event event;
  cpu::enqueue(stream, "count", [&] { ++runs; });
  event.record(stream);
  EXPECT_EQ(runs, 0);
  EXPECT_FALSE(event.done());
  event.synchronize();
  EXPECT_EQ(runs, 1);
  EXPECT_TRUE(event.done());
}

TEST_F(Executor, TheHostDoesNotRunAheadForEver) {
  Stream stream("test");
  int runs = 0;
  for (int i = 0; i < 20000; ++i) cpu::enqueue(stream, "count", [&] { ++runs; });
  EXPECT_GT(runs, 10000);
  stream.synchronize();
  EXPECT_EQ(runs, 20000);
}

// Communication is started, and until it is through the kernels of other streams run.
TEST_F(Executor, KernelsOfOtherStreamsRunWhileCommunicationIsInFlight) {
  Stream compute("compute"), comm("comm");
  std::vector<std::string> log;
  int polls = 0;
  enqueue_polled(comm, {"all-reduce", [&] { log.push_back("start"); }, [&] { return ++polls > 3; }});
  cpu::enqueue(comm, "after", [&] { log.push_back("after"); });
  Event reduced;
  reduced.record(comm);
  cpu::enqueue(compute, "kernel 1", [&] { log.push_back("kernel 1"); });
  cpu::enqueue(compute, "kernel 2", [&] { log.push_back("kernel 2"); });
  wait(compute, reduced);
  cpu::enqueue(compute, "kernel 3", [&] { log.push_back("kernel 3"); });
  compute.synchronize();
  EXPECT_EQ(log, (std::vector<std::string>{"start", "kernel 1", "kernel 2", "after", "kernel 3"}));
  EXPECT_EQ(polls, 4);
}

TEST_F(Executor, MakeProgressRunsOneEntryAtMost) {
  Stream stream("test");
  int runs = 0;
  cpu::make_progress();
  for (int i = 0; i < 3; ++i) cpu::enqueue(stream, "count", [&] { ++runs; });
  cpu::make_progress();
  EXPECT_EQ(runs, 1);
  cpu::drain();
  EXPECT_EQ(runs, 3);
}

// An event is recorded before it can be waited for, so streams alone cannot wait in a circle; a condition that no work brings
// about can still be waited for.
TEST_F(Executor, WaitingForWhatCannotComeIsAnErrorNotAHang) {
  Stream stream("test");
  int runs = 0;
  cpu::enqueue(stream, "count", [&] { ++runs; });
  EXPECT_THROW(cpu::run_until([] { return false; }), RunError);
  EXPECT_EQ(runs, 1);
}

TEST_F(Executor, AnErrorSurfacesAtTheWaitAndLaterWorkStillRuns) {
  Stream stream("test");
  int runs = 0;
  cpu::enqueue(stream, "breaks", [] { throw RunError("disk full"); });
  cpu::enqueue(stream, "count", [&] { ++runs; });
  try {
    stream.synchronize();
    ADD_FAILURE() << "no error";
  } catch (const RunError& e) {
    EXPECT_STREQ(e.what(), "disk full");
  }
  stream.synchronize();
  EXPECT_EQ(runs, 1);
}

TEST_F(Executor, CommunicationThatFailsIsGone) {
  for (bool at_start : {true, false}) {
    Stream stream("test");
    int starts = 0, runs = 0;
    const auto start = [&] {
      ++starts;
      if (at_start) throw RunError("a peer died");
    };
    enqueue_polled(stream, {"breaks", start, [&]() -> bool { throw RunError("a peer died"); }});
    cpu::enqueue(stream, "count", [&] { ++runs; });
    EXPECT_THROW(stream.synchronize(), RunError);
    EXPECT_NO_THROW(stream.synchronize());
    EXPECT_EQ(starts, 1);
    EXPECT_EQ(runs, 1);
  }
}

// Random programs of two communicators on four streams, with kernels and waits between, each run in an order of its own.
// Returns whether each communicator's operations started as enqueued.
bool starts_as_enqueued(std::uint64_t seed, bool with_keys) {
  std::mt19937_64 random(seed);
  const auto draw = [&](int n) { return static_cast<int>(random() % static_cast<std::uint64_t>(n)); };
  std::vector<std::unique_ptr<Stream>> streams;
  for (int i = 0; i < 4; ++i) streams.push_back(std::make_unique<Stream>("test"));
  int communicators[2] = {}, kernels = 0;
  std::map<const void*, std::vector<int>> enqueued, started;
  cpu::set_order_seed(seed);
  for (int i = 0; i < 40; ++i) {
    Stream& stream = *streams[static_cast<std::size_t>(draw(4))];
    const int what = draw(4);
    if (what == 0) order(*streams[static_cast<std::size_t>(draw(4))], stream);
    if (what == 1) cpu::enqueue(stream, "kernel", [&] { ++kernels; });
    if (what < 2) continue;
    const int* key = &communicators[draw(2)];
    enqueued[key].push_back(i);
    enqueue_polled(stream, {"all-reduce", [&started, key, i] { started[key].push_back(i); },
                            [polls = draw(6)]() mutable { return --polls < 0; }, with_keys ? key : nullptr});
    if (draw(8) == 0) stream.synchronize();
  }
  device().synchronize();
  cpu::set_order_seed(0);
  return enqueued == started;
}

TEST_F(Executor, OperationsOfACommunicatorStartAsEnqueuedUnderEveryOrder) {
  int out_of_order = 0;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    EXPECT_TRUE(starts_as_enqueued(seed, true)) << "seed " << seed;
    out_of_order += !starts_as_enqueued(seed, false);
  }
  EXPECT_GT(out_of_order, 250);  // or the keys have proved nothing
}

// The newest stream goes first, but its operation is the communicator's second.
TEST_F(Executor, AnOperationWaitsForTheEarlierOneOfItsCommunicatorToStart) {
  Stream older("older"), newer("newer");
  int communicator = 0;
  std::vector<std::string> log;
  const auto start = [&log](const char* name) { return [&log, name] { log.push_back(name); }; };
  int polls = 0;
  cpu::enqueue(older, "kernel", start("kernel"));
  enqueue_polled(older, {"first", start("first"), [&] { return ++polls > 5; }, &communicator});
  enqueue_polled(newer, {"second", start("second"), [&] { return true; }, &communicator});
  cpu::enqueue(newer, "after", start("after"));
  newer.synchronize();
  EXPECT_EQ(log, (std::vector<std::string>{"kernel", "first", "second", "after"}));
  EXPECT_LE(polls, 5);  // started is enough: both are in flight together
  older.synchronize();
}

TEST_F(Executor, AnOperationThatFailsLetsTheNextOfItsCommunicatorStart) {
  Stream older("older"), newer("newer");
  int communicator = 0;
  bool started = false;
  enqueue_polled(older, {"breaks", [] { throw RunError("a peer died"); }, [] { return true; }, &communicator});
  enqueue_polled(newer, {"next", [&] { started = true; }, [] { return true; }, &communicator});
  EXPECT_THROW(newer.synchronize(), RunError);
  newer.synchronize();
  EXPECT_TRUE(started);
}

TEST_F(Executor, AnOperationThatTakesTooLongIsAnErrorWithItsName) {
  Stream comm("comm"), other("other");
  int polls = 0, runs = 0;
  enqueue_polled(comm, {"all-reduce of layer 3 over dp", [] {},
                        [&] {
                          ++polls;
                          return false;
                        },
                        nullptr, std::chrono::milliseconds(20)});
  cpu::enqueue(comm, "count", [&] { ++runs; });
  const auto begin = std::chrono::steady_clock::now();
  try {
    comm.synchronize();
    ADD_FAILURE() << "no error";
  } catch (const RunError& e) {
    EXPECT_STREQ(e.what(),
                 "all-reduce of layer 3 over dp was not complete after 0.02 s: another rank has ended, or waits in "
                 "another operation");
  }
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(20));
  EXPECT_GT(polls, 1);
  comm.synchronize();  // the operation is gone
  EXPECT_EQ(runs, 1);
  // One that is complete has no time-out, however late the host asks.
  enqueue_polled(other,
                 {"late", [] {}, [&, calls = 0]() mutable { return ++calls > 1; }, nullptr, std::chrono::milliseconds(1)});
  cpu::make_progress();
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(3);
  while (std::chrono::steady_clock::now() < until) continue;
  EXPECT_NO_THROW(other.synchronize());
}

// Otherwise a program that breaks would wait for ranks that are gone.
// 20 ms of other work, and then one poll finds the operation half done: it has not been waited for.
TEST_F(Executor, TimeThatTheHostSpendsElsewhereIsNoTimeOut) {
  Stream stream("comm");
  int polls = 0;
  enqueue_polled(stream, {"patient", [] {}, [&] { return ++polls > 4; }, nullptr, std::chrono::milliseconds(5)});
  for (int i = 0; i < 3; ++i) {
    cpu::make_progress();
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(20);
    while (std::chrono::steady_clock::now() < until) {
    }
  }
  EXPECT_NO_THROW(stream.synchronize());
}

TEST_F(Executor, AStreamThatAnErrorEndsDropsItsWork) {
  Stream other("other");
  int communicator = 0, runs = 0;
  try {
    Stream stream("test");
    enqueue_polled(stream, {"never complete", [&] { ++runs; }, [] { return false; }, &communicator});
    order(stream, other);
    throw std::runtime_error("the program breaks");
  } catch (const std::runtime_error&) {
  }
  enqueue_polled(other, {"next", [&] { ++runs; }, [] { return true; }, &communicator});
  other.synchronize();  // neither the event nor the communicator is held up by what was dropped
  EXPECT_EQ(runs, 1);
}

TEST_F(Executor, AStreamThatEndsRunsItsWorkEvenAfterAnError) {
  int runs = 0;
  {
    Stream stream("test");
    cpu::enqueue(stream, "breaks", [] { throw RunError("disk full"); });
    cpu::enqueue(stream, "count", [&] { ++runs; });
  }
  EXPECT_EQ(runs, 1);
  EXPECT_THROW(device().synchronize(), RunError) << "the destructor could not say it";
  EXPECT_NO_THROW(device().synchronize());  // nothing is left over
}

std::int64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::int64_t size = 0, resident = 0;
  statm >> size >> resident;
  return resident * 4096;
}

TEST_F(Executor, AStreamThatGoesGivesItsMemoryBack) {
  if (Device::mode() == "emu") GTEST_SKIP() << "the emulator keeps what it knows of each byte";
  constexpr std::size_t kBytes = 64 << 20;
  const std::int64_t before = resident_bytes();
  Buffer outlives;
  for (int i = 0; i < 10; ++i) {
    Stream stream("test");
    const Buffer freed(kBytes, MemoryCategory::kWorkspace, stream);
    fill_zero(stream, freed.data(), kBytes);
    outlives = Buffer(kBytes, MemoryCategory::kWorkspace, stream);
    fill_zero(stream, outlives.data(), kBytes);
    stream.synchronize();
  }
  EXPECT_LT(resident_bytes() - before, static_cast<std::int64_t>(3 * kBytes));
}

TEST_F(Executor, ProfilesCommunicationFromStartToEnd) {
  Stream compute("compute"), comm("comm");
  int polls = 0;
  device().synchronize();
  device().profiler().start();
  enqueue_polled(comm, {"all-gather", [] {}, [&] { return ++polls > 2; }});
  cpu::enqueue(compute, "kernel", [] {});
  device().synchronize();
  device().profiler().stop();
  const auto& spans = device().profiler().spans();
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0].name, "kernel");
  EXPECT_EQ(spans[1].name, "all-gather");
  EXPECT_EQ(spans[1].stream, "comm");
  EXPECT_LE(spans[1].start_us, spans[0].start_us);
  EXPECT_GE(spans[1].start_us + spans[1].duration_us, spans[0].start_us + spans[0].duration_us);
}

}  // namespace
}  // namespace ref5d
