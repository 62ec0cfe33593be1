// Virtual time: recorded work replayed with a link.
#include "common/device/timeline.h"

#include <gtest/gtest.h>

#include "common/device/device.h"
#include "tests/support/device_testing.h"

namespace ref5d::testing {
namespace {

using Kind = TimelineEntry::Kind;

std::shared_ptr<const void> event() { return std::make_shared<int>(0); }
TimelineEntry work(int stream, double us) { return {Kind::kWork, stream, "work", us, 0, nullptr}; }
TimelineEntry message(int stream, std::int64_t bytes) { return {Kind::kCommunication, stream, "message", 0, bytes, nullptr}; }
TimelineEntry record(int stream, std::shared_ptr<const void> e) { return {Kind::kRecord, stream, "", 0, 0, std::move(e)}; }
TimelineEntry wait_for(int stream, std::shared_ptr<const void> e) { return {Kind::kWait, stream, "", 0, 0, std::move(e)}; }

constexpr Link kLink{10, 2};  // 10 us and 2 bytes per us

TEST(TimelineReplay, OneStreamAddsUp) {
  const std::vector<TimelineEntry> entries{work(0, 100), message(0, 40), work(0, 5)};
  const VirtualRun run = replay(entries, kLink);
  EXPECT_EQ(run.total_us, 100 + 30 + 5);
  EXPECT_EQ(run.compute_us, 105);
  EXPECT_EQ(run.communication_us, 30);
  EXPECT_EQ(run.exposed_us(), 30);
}

// The message of the first half travels under the second half; only the last one's end shows.
TEST(TimelineReplay, MessagesHideUnderWork) {
  const auto first = event(), second = event(), done = event();
  const std::vector<TimelineEntry> entries{work(0, 100),    record(0, first),  wait_for(1, first),  message(1, 40),
                                           work(0, 100),    record(0, second), wait_for(1, second), message(1, 40),
                                           record(1, done), wait_for(0, done), work(0, 7)};
  const VirtualRun run = replay(entries, kLink);
  EXPECT_EQ(run.total_us, 100 + 100 + 30 + 7);
  EXPECT_EQ(run.exposed_us(), 30);
}

// One link: messages of two streams follow one another.
TEST(TimelineReplay, StreamsShareTheLink) {
  const std::vector<TimelineEntry> entries{message(1, 40), message(2, 40), work(0, 10)};
  EXPECT_EQ(replay(entries, kLink).total_us, 60);
}

TEST(TimelineReplay, WaitsForWhatHappenedBeforeAreOver) {
  const std::vector<TimelineEntry> entries{wait_for(0, event()), work(0, 10)};
  EXPECT_EQ(replay(entries, kLink).total_us, 10);
}

TEST(TimelineReplay, StreamsThatWaitForEachOtherAreAnError) {
  const auto a = event(), b = event();
  const std::vector<TimelineEntry> entries{wait_for(0, a), record(0, b), wait_for(1, b), record(1, a)};
  EXPECT_THROW((void)replay(entries, kLink), std::logic_error);
}

#ifndef REF5D_CUDA
// What the streams really do: two kernels' work on two streams, one waiting for the other.
TEST(TimelineRecord, HasTheOrderAndTheTimes) {
  Stream& compute = device().compute();
  Stream side("side");
  const Tensor x = filled(1, compute);
  device().synchronize();
  device().timeline().start();
  host_task(compute, "first", [] {
    volatile double sum = 0;
    for (int i = 0; i < 300000; ++i) sum = sum + 1;
  });
  order(compute, side);
  copy_on_device(side, x.raw(), x.raw(), 8);
  order(side, compute);
  host_task(compute, "last", [] {});
  device().synchronize();
  device().timeline().stop();
  const VirtualRun run = replay(device().timeline().entries(), kLink);
  ASSERT_EQ(run.spans.size(), 3u);
  EXPECT_EQ(run.spans[0].name, "first");
  EXPECT_GT(run.spans[0].duration_us, 10);
  EXPECT_GE(run.spans[1].start_us, run.spans[0].duration_us);
  EXPECT_EQ(run.spans[2].name, "last");
  EXPECT_GE(run.spans[2].start_us, run.spans[1].start_us + run.spans[1].duration_us);
}
#endif

}  // namespace
}  // namespace ref5d::testing
