// The CPU's streams: what a GPU does by luck, they do every time.
#ifndef REF5D_CUDA

#include <gtest/gtest.h>

#include "common/device/cpu/executor.h"
#include "common/device/device.h"
#include "common/device/error.h"
#include "tests/support/kernel_testing.h"
#include "tests/unit/device_kernels.h"

namespace ref5d {
namespace {

using testing::add_constant;
using testing::multiply;

Tensor filled(double v, Stream& stream) {
  return Tensor::from_host(HostTensor::from_doubles(std::vector<double>(10, v), {10}, Dtype::kFp64), Dtype::kFp64,
                           MemoryCategory::kWorkspace, stream);
}

// Side streams run as early as their waits allow: without a wait y is made before x is ready.
TEST(Executor, AForgottenWaitIsAWrongResult) {
  for (bool forgotten : {true, false}) {
    Stream first("first"), second("second");
    const Tensor x = filled(1, first), y = filled(0, second);
    device().synchronize();
    add_constant(first, x, 1);
    if (!forgotten) order(first, second);
    multiply(second, y, x, 3);
    EXPECT_EQ(y.to_doubles(second)[0], forgotten ? 3 : 6);
  }
}

TEST(Executor, NothingRunsBeforeTheHostWaits) {
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

TEST(Executor, TheHostDoesNotRunAheadForEver) {
  Stream stream("test");
  int runs = 0;
  for (int i = 0; i < 20000; ++i) cpu::enqueue(stream, "count", [&] { ++runs; });
  EXPECT_GT(runs, 10000);
  stream.synchronize();
  EXPECT_EQ(runs, 20000);
}

// Communication is started, and until it is through the kernels of other streams run.
TEST(Executor, KernelsOfOtherStreamsRunWhileCommunicationIsInFlight) {
  Stream compute("compute"), comm("comm");
  std::vector<std::string> log;
  int polls = 0;
  cpu::enqueue_polled(
      comm, "all-reduce", [&] { log.push_back("start"); }, [&] { return ++polls > 3; });
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

TEST(Executor, MakeProgressRunsOneEntryAtMost) {
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
TEST(Executor, WaitingForWhatCannotComeIsAnErrorNotAHang) {
  Stream stream("test");
  int runs = 0;
  cpu::enqueue(stream, "count", [&] { ++runs; });
  EXPECT_THROW(cpu::run_until([] { return false; }), RunError);
  EXPECT_EQ(runs, 1);
}

TEST(Executor, AnErrorSurfacesAtTheWaitAndLaterWorkStillRuns) {
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

TEST(Executor, CommunicationThatFailsIsGone) {
  for (bool at_start : {true, false}) {
    Stream stream("test");
    int starts = 0, runs = 0;
    cpu::enqueue_polled(
        stream, "breaks",
        [&] {
          ++starts;
          if (at_start) throw RunError("a peer died");
        },
        [&]() -> bool { throw RunError("a peer died"); });
    cpu::enqueue(stream, "count", [&] { ++runs; });
    EXPECT_THROW(stream.synchronize(), RunError);
    EXPECT_NO_THROW(stream.synchronize());
    EXPECT_EQ(starts, 1);
    EXPECT_EQ(runs, 1);
  }
}

TEST(Executor, AStreamThatEndsRunsItsWorkEvenAfterAnError) {
  int runs = 0;
  {
    Stream stream("test");
    cpu::enqueue(stream, "breaks", [] { throw RunError("disk full"); });
    cpu::enqueue(stream, "count", [&] { ++runs; });
  }
  EXPECT_EQ(runs, 1);
  EXPECT_NO_THROW(device().synchronize());  // nothing is left over
}

TEST(Executor, ProfilesCommunicationFromStartToEnd) {
  Stream compute("compute"), comm("comm");
  int polls = 0;
  device().synchronize();
  device().profiler().start();
  cpu::enqueue_polled(
      comm, "all-gather", [] {}, [&] { return ++polls > 2; });
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

#endif
