// Streams, events, copies and the host's own work.
#include "common/device/device.h"

#include <gtest/gtest.h>

#include <chrono>
#include <type_traits>

#include "common/device/error.h"
#include "common/device/polled.h"
#include "tests/support/device_testing.h"
#include "tests/unit/device_kernels.h"

namespace ref5d {
namespace {

using testing::add_constant;
using testing::filled;
using testing::kFilledSize;
using testing::multiply;
using testing::value_of;

TEST(Stream, RunsInOrder) {
  Stream stream("test");
  const Tensor x = filled(1, stream);
  for (int i = 0; i < 5; ++i) {
    add_constant(stream, x, 1);
    multiply(stream, x, x, 2);
  }
  EXPECT_EQ(value_of(x, stream), 94);  // x -> 2 (x + 1), five times
}

TEST(Stream, WaitsForAnEvent) {
  Stream first("first"), second("second");
  const Tensor x = filled(1, first), y = filled(0, second);
  second.synchronize();
  add_constant(first, x, 1);
  Event ready;
  ready.record(first);
  add_constant(first, x, 100);  // after the event: y does not need it, and must not see half of it
  Event all;
  all.record(first);
  wait(second, all);
  multiply(second, y, x, 3);
  EXPECT_EQ(value_of(y, second), 306);
  ready.synchronize();
  EXPECT_TRUE(ready.done());
  order(second, first);  // x may be written again once y has been made
  add_constant(first, x, 1);
  EXPECT_EQ(value_of(x, first), 103);
}

TEST(Stream, ChainsThroughThreeStreams) {
  Stream a("a"), b("b"), c("c");
  const Tensor x = filled(1, a);
  add_constant(a, x, 1);
  order(a, b);
  multiply(b, x, x, 10);
  order(b, c);
  add_constant(c, x, 3);
  order(c, a);
  multiply(a, x, x, 2);
  EXPECT_EQ(value_of(x, a), 46);
}

TEST(Event, WaitingOnOneThatWasNeverRecordedIsNothing) {
  Stream stream("test");
  const Event never;
  EXPECT_TRUE(never.done());
  never.synchronize();
  const Tensor x = filled(1, stream);
  wait(stream, never);
  add_constant(stream, x, 1);
  EXPECT_EQ(value_of(x, stream), 2);
}

TEST(Event, TheLastRecordCounts) {
  Stream first("first"), second("second");
  const Tensor x = filled(0, first), y = filled(0, second);
  Event event;
  add_constant(first, x, 1);
  event.record(first);
  add_constant(first, x, 1);
  event.record(first);
  wait(second, event);
  multiply(second, y, x, 1);
  EXPECT_EQ(value_of(y, second), 2);
  Event moved = std::move(event);
  EXPECT_TRUE(moved.done());
}

// What owns something of the device is either moved or not, and never copied by accident.

static_assert(!std::is_copy_constructible_v<Event> && !std::is_copy_assignable_v<Event>);
static_assert(std::is_nothrow_move_constructible_v<Event> && std::is_nothrow_move_assignable_v<Event>);
static_assert(!std::is_move_constructible_v<Stream> && !std::is_move_assignable_v<Stream>);
static_assert(!std::is_move_constructible_v<PinnedBuffer> && !std::is_move_assignable_v<PinnedBuffer>);
static_assert(std::is_nothrow_move_constructible_v<Buffer> && std::is_nothrow_move_assignable_v<Buffer>);

TEST(Event, KeepsWhatItWaitsForWhenItIsMoved) {
  Stream first("first"), second("second");
  const Tensor x = filled(0, first), y = filled(0, second);
  second.synchronize();
  Event event, other;
  add_constant(first, x, 1);
  event.record(first);
  other.record(second);
  other = std::move(event);  // lets go of its own
  Event& same = other;
  other = std::move(same);
  wait(second, other);
  multiply(second, y, x, 3);
  EXPECT_EQ(value_of(y, second), 3);
  event = Event();  // one that was moved from may be used again
  EXPECT_TRUE(event.done());
  for (int i = 0; i < 1000; ++i) event = Event();
}

TEST(Device, SelectsAGpuForEveryLocalRank) {
  Device::select(0);
  Stream stream("test");
  EXPECT_EQ(value_of(filled(2, stream), stream), 2);
}

TEST(HostTask, AnErrorSurfacesAtTheNextWaitAndLaterWorkStillRuns) {
  Stream stream("test");
  const auto breaks = [](const char* message) { return [message] { throw RunError(message); }; };
  const auto error_of = [](const std::function<void()>& waiting) {
    try {
      waiting();
    } catch (const RunError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  int runs = 0;
  Event event;
  std::byte byte{};
  const Tensor x = filled(1, stream);
  const auto waits =
      std::vector<std::function<void()>>{[&] { stream.synchronize(); }, [&] { event.synchronize(); },
                                         [&] { device().synchronize(); }, [&] { copy_to_host(stream, &byte, x.raw(), 1); }};
  for (const auto& waiting : waits) {
    host_task(stream, "breaks", breaks("disk full"));
    host_task(stream, "count", [&] { ++runs; });
    event.record(stream);
    EXPECT_EQ(error_of(waiting), "disk full");
    EXPECT_EQ(error_of([&] { stream.synchronize(); }), "");
  }
  EXPECT_EQ(runs, 4);
  host_task(stream, "breaks", breaks("first"));
  host_task(stream, "breaks", breaks("second"));
  EXPECT_EQ(error_of([&] { stream.synchronize(); }), "first");
  EXPECT_EQ(error_of([&] { stream.synchronize(); }), "second");
  EXPECT_EQ(error_of([&] { stream.synchronize(); }), "");
}

// What a task owns may be memory of the device, which CUDA's own threads may not free.

TEST(HostTask, MayOwnATensor) {
  Stream stream("test");
  const std::int64_t before = device().memory().total_current();
  host_task(stream, "owns", [x = filled(1, stream)] { (void)x; });
  stream.synchronize();
  EXPECT_EQ(device().memory().total_current(), before);
}

TEST(PolledWork, RunsInTheStreamsOrderUntilItIsComplete) {
  Stream stream("test");
  const Tensor x = filled(1, stream);
  std::vector<std::string> log;
  int polls = 0;
  add_constant(stream, x, 1);
  host_task(stream, "note", [&] { log.push_back("before"); });
  enqueue_polled(stream, {"send", [&] { log.push_back("start"); }, [&] { return ++polls == 3; }});
  host_task(stream, "note", [&] { log.push_back("after"); });
  add_constant(stream, x, 1);
  EXPECT_EQ(value_of(x, stream), 3);
  EXPECT_EQ(log, (std::vector<std::string>{"before", "start", "after"}));
  EXPECT_EQ(polls, 3);
  const auto overdue = [&] {
    enqueue_polled(stream, {"receive", [] {}, [] { return false; }, nullptr, std::chrono::milliseconds(2)});
    stream.synchronize();
  };
  EXPECT_THROW(overdue(), RunError);
  EXPECT_NO_THROW(stream.synchronize());
}

TEST(HostTask, RunsInTheStreamsOrder) {
  Stream first("first"), second("second");
  std::vector<int> order_of_tasks;
  const auto note = [&](int i) { return [&order_of_tasks, i] { order_of_tasks.push_back(i); }; };
  host_task(first, "note", note(1));
  host_task(first, "note", note(2));
  order(first, second);
  host_task(second, "note", note(3));
  order(second, first);
  host_task(first, "note", note(4));
  first.synchronize();
  EXPECT_EQ(order_of_tasks, (std::vector<int>{1, 2, 3, 4}));
}

TEST(Copy, ThereAndBackAndOnTheDevice) {
  Stream stream("test");
  std::vector<double> source(kFilledSize, 5), back(kFilledSize, 0);
  const Tensor x = filled(0, stream), y = filled(0, stream);
  copy_to_device(stream, x.raw(), source.data(), x.bytes());
  std::fill(source.begin(), source.end(), 7.0);  // ordinary memory may be reused at once
  copy_on_device(stream, y.raw(), x.raw(), x.bytes());
  fill_zero(stream, x.raw(), x.bytes());
  copy_to_host(stream, back.data(), y.raw(), y.bytes());
  EXPECT_EQ(back, std::vector<double>(kFilledSize, 5));
  EXPECT_EQ(value_of(x, stream), 0);
  PinnedBuffer pinned(x.bytes());
  std::copy(source.begin(), source.end(), reinterpret_cast<double*>(pinned.data()));
  copy_pinned_to_device(stream, x.raw(), pinned.data(), x.bytes());
  EXPECT_EQ(value_of(x, stream), 7);
}

TEST(Launch, AnEmptyGridRunsNothing) {
  Stream stream("test");
  const Tensor x = filled(1, stream);
  add_constant(stream, x, 1, 0, 1, 1);
  add_constant(stream, x, 1, 1, 0, 1);
  add_constant(stream, x, 1, 1, 1, 0);
  EXPECT_EQ(value_of(x, stream), 1);
}

TEST(Launch, MoreBlocksThanAGpuCanNumberAreAnErrorEverywhere) {
  Stream stream("test");
  const Tensor x = filled(1, stream);
  EXPECT_THROW(add_constant(stream, x, 1, 1, 65536, 1), RunError);
  EXPECT_THROW(add_constant(stream, x, 1, 1, 1, 65536), RunError);
  EXPECT_THROW(add_constant(stream, x, 1, 0x80000000u, 1, 1), RunError);
  EXPECT_EQ(value_of(x, stream), 1);
}

// A buffer may be dropped while work that uses it is queued, and its memory given to a later tensor of the same stream.

// The same allocations count the same whether the host runs ahead or waits after each.

// Times count from the start of the profile that they are in.

}  // namespace
}  // namespace ref5d
