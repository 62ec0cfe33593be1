// Runs the parallel tests on the ranks that mpiexec started. Rank 0 prints.
#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "common/comm/backend.h"
#include "common/comm/world.h"
#include "tests/support/parallel_testing.h"

namespace ref5d::testing {

void ParallelTest::TearDown() {
  std::string mine;
  const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
  for (int i = 0; i < info->result()->total_part_count(); ++i) {
    const auto& part = info->result()->GetTestPartResult(i);
    if (part.failed()) mine += std::string(part.summary()) + "\n";
  }
  const auto all = gather_on_host(world().everyone(), to_bytes(mine));
  for (std::size_t r = 1; r < all.size(); ++r)
    if (!all[r].empty()) ADD_FAILURE() << "on rank " << r << ": " << to_text(all[r]);
}

}  // namespace ref5d::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  ref5d::World world;
  world.set_timeout(60);
  ref5d::device().set_threads(1);
  ref5d::Device::select(world.local_rank());
  const std::string backend = ref5d::choose_backend("auto");
  if (world.is_root() && !backend.empty()) std::printf("%s\n", backend.c_str());
  if (!world.is_root()) {
    auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
  }
  int status = RUN_ALL_TESTS();
  // What left a test on one rank alone has left the others waiting.
  status = static_cast<int>(ref5d::to_number(ref5d::broadcast_on_host(world.everyone(), ref5d::to_bytes(double(status)))));
  return status;
}
