// Streams, events, memory and the profiler.
#include "common/device/device.h"

#include <gtest/gtest.h>

#include <set>

#include "common/device/error.h"
#include "tests/support/kernel_testing.h"
#include "tests/unit/device_kernels.h"

namespace ref5d {
namespace {

using testing::add_constant;
using testing::device_tensor;
using testing::multiply;
using testing::values_of;

constexpr std::size_t kSize = 1000;

Tensor filled(double v, Stream& stream) {
  return Tensor::from_host(HostTensor::from_doubles(std::vector<double>(kSize, v), {kSize}, Dtype::kFp64), Dtype::kFp64,
                           MemoryCategory::kWorkspace, stream);
}
// After the stream has run.
double value_of(const Tensor& t, Stream& stream) {
  const std::vector<double> v = t.to_doubles(stream);
  for (double x : v) EXPECT_EQ(x, v[0]);
  return v[0];
}

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
  std::vector<double> source(kSize, 5), back(kSize, 0);
  const Tensor x = filled(0, stream), y = filled(0, stream);
  copy_to_device(stream, x.raw(), source.data(), x.bytes());
  std::fill(source.begin(), source.end(), 7.0);  // ordinary memory may be reused at once
  copy_on_device(stream, y.raw(), x.raw(), x.bytes());
  fill_zero(stream, x.raw(), x.bytes());
  copy_to_host(stream, back.data(), y.raw(), y.bytes());
  EXPECT_EQ(back, std::vector<double>(kSize, 5));
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

// A buffer may be dropped while work that uses it is queued, and its memory given to a later tensor of the same stream.
TEST(Memory, FreesInTheStreamsOrder) {
  Stream stream("test");
  const Tensor y = filled(0, stream);
  const std::byte *first = nullptr, *second = nullptr;
  {
    const Tensor x = filled(1, stream);
    first = x.raw();
    add_constant(stream, x, 1);
    multiply(stream, y, x, 10);
  }
  const Tensor z = filled(-5, stream);
  second = z.raw();
  add_constant(stream, z, 1);
  EXPECT_EQ(value_of(y, stream), 20);
  EXPECT_EQ(value_of(z, stream), -4);
  if (Device::mode() == "cpu") {
    EXPECT_EQ(first, second);  // or this test has proved nothing
  }
}

TEST(Memory, ManyShortLivedTensorsKeepTheirValues) {
  Stream stream("test");
  const Tensor total = filled(0, stream);
  double expected = 0;
  for (int i = 0; i < 200; ++i) {
    const Tensor a = filled(i, stream), b = Tensor::empty({kSize}, Dtype::kFp64, MemoryCategory::kWorkspace, stream);
    multiply(stream, b, a, 2);
    multiply(stream, a, total, 1);
    multiply(stream, total, b, 1);
    add_constant(stream, total, 1);
    expected = 2.0 * i + 1;
  }
  EXPECT_EQ(value_of(total, stream), expected);
}

TEST(Memory, CopiesShareTheBlockAndViewsKeepIt) {
  MemoryLedger& ledger = device().memory();
  Stream stream("test");
  const std::int64_t before = ledger.current(MemoryCategory::kMaster);
  Tensor view;
  {
    const Buffer buffer(100, MemoryCategory::kMaster, stream);
    const Buffer copy = buffer;  // NOLINT: the copy is what is tested
    EXPECT_EQ(copy.data(), buffer.data());
    EXPECT_EQ(ledger.current(MemoryCategory::kMaster), before + 100);
    const Tensor whole = Tensor::zeros({4, 5}, Dtype::kFp32, MemoryCategory::kMaster, stream);
    view = whole.rows(1, 2);
  }
  EXPECT_EQ(ledger.current(MemoryCategory::kMaster), before + 80);
  EXPECT_EQ(view.to_doubles(stream), std::vector<double>(5, 0.0));
  view = {};
  EXPECT_EQ(ledger.current(MemoryCategory::kMaster), before);
  const Buffer empty(0, MemoryCategory::kMaster, stream);
  EXPECT_EQ(empty.data(), nullptr);
  EXPECT_EQ(ledger.current(MemoryCategory::kMaster), before);
}

TEST(MemoryLedger, CountsExactlyByCategory) {
  MemoryLedger ledger;
  ledger.add(MemoryCategory::kParameters, 100);
  ledger.add(MemoryCategory::kActivations, 50);
  ledger.remove(MemoryCategory::kActivations, 50);
  ledger.add(MemoryCategory::kActivations, 20);
  EXPECT_EQ(ledger.current(MemoryCategory::kParameters), 100);
  EXPECT_EQ(ledger.current(MemoryCategory::kActivations), 20);
  EXPECT_EQ(ledger.peak(MemoryCategory::kActivations), 50);
  EXPECT_EQ(ledger.total_current(), 120);
  EXPECT_EQ(ledger.total_peak(), 150);
  EXPECT_EQ(ledger.current(MemoryCategory::kGradients), 0);
  ledger.reset_peaks();
  EXPECT_EQ(ledger.peak(MemoryCategory::kActivations), 20);
  EXPECT_EQ(ledger.total_peak(), 120);
  std::set<std::string> names;
  for (int c = 0; c < kMemoryCategories; ++c) names.insert(memory_category_name(static_cast<MemoryCategory>(c)));
  EXPECT_EQ(static_cast<int>(names.size()), kMemoryCategories);
}

TEST(MemoryLedger, ACapIsAnErrorThatLeavesTheCountsAlone) {
  Stream stream("test");
  MemoryLedger& ledger = device().memory();
  const std::int64_t before = ledger.total_current(), peak = ledger.total_peak();
  ledger.set_cap(before + 1000);
  {
    const Buffer fits(1000, MemoryCategory::kOptimizer, stream);
    try {
      const Buffer one_more(1, MemoryCategory::kOptimizer, stream);
      ADD_FAILURE() << "no error";
    } catch (const RunError& e) {
      EXPECT_NE(std::string(e.what()).find("optimizer"), std::string::npos) << e.what();
      EXPECT_NE(std::string(e.what()).find(std::to_string(before + 1000)), std::string::npos) << e.what();
    }
    EXPECT_EQ(ledger.total_current(), before + 1000);
  }
  ledger.set_cap(0);
  EXPECT_EQ(ledger.total_current(), before);
  EXPECT_EQ(ledger.total_peak(), std::max(peak, before + 1000));
  EXPECT_NO_THROW(Buffer(2000, MemoryCategory::kOptimizer, stream));
}

// The same allocations count the same whether the host runs ahead or waits after each.
TEST(MemoryLedger, DoesNotDependOnWhenTheWorkRuns) {
  Stream stream("test");
  MemoryLedger& ledger = device().memory();
  const auto peak_of = [&](bool wait_each_time) {
    stream.synchronize();
    ledger.reset_peaks();
    const std::int64_t start = ledger.total_current();
    const Tensor kept = filled(0, stream);
    for (int i = 0; i < 20; ++i) {
      const Tensor a = filled(i, stream);
      multiply(stream, kept, a, 2);
      if (wait_each_time) stream.synchronize();
    }
    return ledger.total_peak() - start;
  };
  const std::int64_t ahead = peak_of(false), in_step = peak_of(true);
  EXPECT_EQ(ahead, in_step);
  EXPECT_EQ(ahead, static_cast<std::int64_t>(2 * kSize * sizeof(double)));
}

TEST(Profiler, NamesKernelsPlainlyAndCountsCalls) {
  Stream stream("mine");
  const Tensor x = filled(1, stream);
  const Tensor y = device_tensor({1, 2}, {2}, Dtype::kFp32), z = device_tensor({1, 2}, {2}, Dtype::kBf16);
  device().synchronize();
  Profiler& profiler = device().profiler();
  profiler.start();
  add_constant(stream, x, 1);
  add_constant(stream, x, 1);
  add_constant(stream, y, 1);
  add_constant(stream, z, 1);
  device().synchronize();
  profiler.stop();
  add_constant(stream, x, 1);  // not recorded
  stream.synchronize();
  const auto totals = profiler.by_name();
  std::set<std::string> names;
  for (const auto& [name, total] : totals) names.insert(name);
  EXPECT_EQ(names, (std::set<std::string>{"add_constant<double>", "add_constant<float>", "add_constant<bf16>"}));
  EXPECT_EQ(totals.at("add_constant<double>").calls, 2);
  double sum = 0, last_end = 0;
  for (const Span& s : profiler.spans()) {
    EXPECT_EQ(s.stream, "mine");
    // One stream: one after the other, within what the clock can tell.
    EXPECT_GE(s.start_us, last_end - (Device::mode() == "cuda" ? 20 : 1e-6));
    EXPECT_GE(s.duration_us, 0);
    last_end = s.start_us + s.duration_us;
    if (s.name == "add_constant<double>") sum += s.duration_us;
  }
  EXPECT_EQ(totals.at("add_constant<double>").us, sum);
  profiler.start();  // forgets
  profiler.stop();
  EXPECT_TRUE(profiler.spans().empty());
}

}  // namespace
}  // namespace ref5d
