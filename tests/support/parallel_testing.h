// Tests that all ranks of a world run together, whatever its size.
#pragma once

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "common/comm/mesh.h"
#include "common/comm/world.h"
#include "common/device/device.h"

namespace ref5d::testing {

// A failure on any rank is one on rank 0, which alone prints.
class ParallelTest : public ::testing::Test {
 protected:
  void TearDown() override;
};

[[nodiscard]] inline std::vector<int> ranks_from(int begin, int end) {
  std::vector<int> ranks(static_cast<std::size_t>(end - begin));
  std::iota(ranks.begin(), ranks.end(), begin);
  return ranks;
}

// All ranks along dp.
[[nodiscard]] inline Mesh dp_mesh() { return Mesh({.edp = world().size()}, ranks_from(0, world().size())); }

}  // namespace ref5d::testing
