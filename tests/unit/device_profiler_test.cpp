// The profiler.
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <set>
#include <thread>

#include "common/device/device.h"
#include "common/device/polled.h"
#include "tests/support/device_testing.h"
#include "tests/support/kernel_testing.h"
#include "tests/unit/device_kernels.h"

namespace ref5d {
namespace {

using testing::add_constant;
using testing::device_tensor;
using testing::filled;
using testing::kFilledSize;

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

TEST(Profiler, NamesWhatIsNoKernel) {
  Stream stream("mine");
  std::vector<double> values(kFilledSize, 1);
  PinnedBuffer pinned(kFilledSize * sizeof(double));
  const Tensor x = filled(1, stream), y = filled(1, stream);
  device().synchronize();
  Profiler& profiler = device().profiler();
  profiler.start();
  copy_to_device(stream, x.raw(), values.data(), x.bytes());
  copy_pinned_to_device(stream, x.raw(), pinned.data(), x.bytes());
  copy_on_device(stream, y.raw(), x.raw(), x.bytes());
  fill_zero(stream, x.raw(), x.bytes());
  host_task(stream, "task", [] {});
  enqueue_polled(stream, {"send", [] {}, [] { return true; }});
  copy_to_host(stream, values.data(), y.raw(), y.bytes());
  device().synchronize();
  profiler.stop();
  std::map<std::string, std::int64_t> calls;
  for (const auto& [name, total] : profiler.by_name()) calls[name] = total.calls;
  EXPECT_EQ(calls, (std::map<std::string, std::int64_t>{
                       {"copy to device", 2}, {"copy", 1}, {"fill zero", 1}, {"task", 1}, {"send", 1}, {"copy to host", 1}}));
  for (const Span& s : profiler.spans()) EXPECT_EQ(s.stream, "mine");
}

TEST(Profiler, EveryProfileStartsAtZero) {
  Stream stream("mine");
  const Tensor x = filled(1, stream);
  device().synchronize();
  for (int profile = 0; profile < 2; ++profile) {
    device().profiler().start();
    const auto begin = std::chrono::steady_clock::now();
    if (profile == 0) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    add_constant(stream, x, 1);
    device().synchronize();
    const double us = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
    device().profiler().stop();
    ASSERT_EQ(device().profiler().spans().size(), 1u);
    const Span& span = device().profiler().spans()[0];
    EXPECT_GE(span.start_us, profile == 0 ? 100e3 : 0);
    EXPECT_LE(span.start_us + span.duration_us, us + 1e3);
  }
}

}  // namespace
}  // namespace ref5d
