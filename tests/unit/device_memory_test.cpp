// Buffers and the memory ledger.
#include <gtest/gtest.h>

#include <set>

#include "common/device/device.h"
#include "common/device/error.h"
#include "tests/support/device_testing.h"
#include "tests/unit/device_kernels.h"

namespace ref5d {
namespace {

using testing::add_constant;
using testing::filled;
using testing::kFilledSize;
using testing::multiply;
using testing::value_of;

TEST(Memory, ABufferSurvivesMovesAndItselfAsSource) {
  MemoryLedger& ledger = device().memory();
  Stream stream("test");
  const std::int64_t before = ledger.current(MemoryCategory::kMaster);
  {
    Buffer a(100, MemoryCategory::kMaster, stream), b(10, MemoryCategory::kMaster, stream);
    const std::byte* data = a.data();
    b = std::move(a);
    EXPECT_EQ(ledger.current(MemoryCategory::kMaster), before + 100);
    Buffer& same = b;
    b = same;
    EXPECT_EQ(b.data(), data);
    b = std::move(same);
    EXPECT_EQ(b.data(), data);
    EXPECT_FALSE(a);  // NOLINT(bugprone-use-after-move): empty, not freed twice
  }
  EXPECT_EQ(ledger.current(MemoryCategory::kMaster), before);
}

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
    const Tensor a = filled(i, stream), b = Tensor::empty({kFilledSize}, Dtype::kFp64, MemoryCategory::kWorkspace, stream);
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
  EXPECT_EQ(ahead, static_cast<std::int64_t>(2 * kFilledSize * sizeof(double)));
}

}  // namespace
}  // namespace ref5d
