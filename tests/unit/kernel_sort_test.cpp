#include <algorithm>
#include <numeric>

#include "common/kernels/sort.h"
#include "tests/support/kernel_repeat.h"

namespace ref5d::testing {
namespace {

Ints sorted(const Ints& keys, std::int64_t limit) {
  const auto n = static_cast<std::int64_t>(keys.size());
  const Tensor order = device_ints(Ints(keys.size(), -1), {n});
  stable_sort(stream(), order, device_ints(keys, {n}), limit);
  Ints result(keys.size());
  copy_to_host(stream(), result.data(), order.raw(), order.bytes());
  return result;
}

Ints reference(const Ints& keys) {
  Ints order(keys.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return keys[std::size_t(a)] < keys[std::size_t(b)]; });
  return order;
}

// 1023, 1024, 1025 and more: around and beyond the keys of one block. The limits need one to four passes.
TEST(StableSort, MatchesTheStandardLibraryForEverySizeAndNumberOfPasses) {
  std::vector<std::int64_t> sizes = kAwkwardSizes;
  sizes.insert(sizes.end(), {0, 255, 256, 257, 1023, 1024, 1025, 3000, 5000});
  std::mt19937 generator(1);
  for (const std::int64_t n : sizes) {
    for (const std::int64_t limit : {std::int64_t{1}, std::int64_t{2}, std::int64_t{5}, std::int64_t{256}, std::int64_t{257},
                                     std::int64_t{65536}, std::int64_t{65537}, std::int64_t{128256}, std::int64_t{1} << 24,
                                     (std::int64_t{1} << 24) + 1, std::int64_t{1} << 31}) {
      if (n > 1025 && limit > 257 && limit < std::int64_t{1} << 31) continue;
      std::uniform_int_distribution<std::int64_t> any(0, limit - 1);
      Ints keys(static_cast<std::size_t>(n));
      for (auto& k : keys) k = static_cast<std::int32_t>(any(generator));
      if (n > 2) {  // both ends, and some equal keys
        keys[0] = static_cast<std::int32_t>(limit - 1);
        keys[1] = keys[2];
        keys.back() = 0;
      }
      ASSERT_EQ(sorted(keys, limit), reference(keys)) << n << " keys below " << limit;
    }
  }
}

TEST(StableSort, EqualSortedAndReversedKeys) {
  Ints up(2500), down(2500), steps(2500);
  for (std::int32_t i = 0; i < 2500; ++i) {
    up[std::size_t(i)] = i;
    down[std::size_t(i)] = 2499 - i;
    steps[std::size_t(i)] = i % 3;
  }
  for (const Ints& keys : {Ints(2500, 299), up, down, steps}) EXPECT_EQ(sorted(keys, 2500), reference(keys));
}

TEST(StableSort, RepeatsBitwise) {
  expect_repeatable([] {
    Ints keys(4000);
    for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<std::int32_t>(i * 7919 % 1000);
    const Tensor order = device_ints(Ints(4000, -1), {4000});
    stable_sort(stream(), order, device_ints(keys, {4000}), 1000);
    return order;
  });
}

TEST(StableSort, WrongShapesDtypesAndLimitsAreRefused) {
  const Tensor three = device_ints({0, 1, 2}, {3}), two = device_ints({0, 1}, {2}), floats = poisoned({3}, Dtype::kFp32);
  EXPECT_THROW(stable_sort(stream(), two, three, 3), std::logic_error);
  EXPECT_THROW(stable_sort(stream(), three, floats, 3), std::logic_error);
  EXPECT_THROW(stable_sort(stream(), floats, three, 3), std::logic_error);
  EXPECT_THROW(stable_sort(stream(), three, three, 0), std::logic_error);
  EXPECT_THROW(stable_sort(stream(), three, three, (std::int64_t{1} << 31) + 1), std::logic_error);
}

}  // namespace
}  // namespace ref5d::testing
