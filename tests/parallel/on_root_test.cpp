// What rank 0 does alone while the others wait for it.
#include <chrono>
#include <thread>

#include "common/app/parallel_program.h"
#include "common/device/error.h"
#include "tests/support/parallel_testing.h"

namespace ref5d::testing {
namespace {

class OnRoot : public ParallelTest {};

TEST_F(OnRoot, TheOthersWaitLongerThanTheTimeOut) {
  const double before = std::chrono::duration<double>(world().timeout()).count();
  world().set_timeout(0.2);
  std::string result;
  EXPECT_NO_THROW(result = on_root(world(), [] {
                    std::this_thread::sleep_for(std::chrono::seconds(1));
                    return std::string("done");
                  }));
  EXPECT_EQ(result, "done");
  world().set_timeout(before);
  barrier_on_host(world().everyone());
}

TEST_F(OnRoot, EveryRankMeetsItsError) {
  EXPECT_THROW((void)on_root(world(), []() -> std::string { throw InputError("no such file"); }), InputError);
  EXPECT_THROW((void)on_root(world(), []() -> std::string { throw RunError("the disk is full"); }), RunError);
}

}  // namespace
}  // namespace ref5d::testing
