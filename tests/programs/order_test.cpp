// Starts the tests of tests/parallel/order_test.cpp that end their process.
#include <gtest/gtest.h>

#include "tests/support/program_testing.h"

namespace ref5d::testing {
namespace {

struct OrderCase {
  const char* name;
  std::vector<std::string> parts;
};

class Order : public ::testing::TestWithParam<OrderCase> {};

TEST_P(Order, P57_ADisagreementIsNamed) {
  const auto& [name, parts] = GetParam();
  RunOptions options;
  options.ranks = 2;
  const std::string filter = "--gtest_filter=Mismatch.DISABLED_" + std::string(name);
  const Outcome run = run_binary("tests/parallel", {"--gtest_also_run_disabled_tests", filter}, options);
  EXPECT_EQ(run.exit_status, 3) << run.out << run.description();
  for (const std::string& part : parts) EXPECT_NE(run.err.find(part), std::string::npos) << part << " in " << run.err;
  EXPECT_LT(run.seconds, 20);
}

INSTANTIATE_TEST_SUITE_P(
    Of, Order,
    ::testing::Values(
        OrderCase{"TwoCommunicatorsInOppositeOrders",
                  {"call 1", "all_reduce of 3 x fp32 over dp", "all_reduce of 4 x fp32 over world"}},
        OrderCase{"TwoCommunicatorsOfOneName", {"disagree", "call 1", "all_reduce of 3 x fp32 over dp"}},
        OrderCase{"AnotherRoot", {"broadcast of 3", "(root or operation 1)"}},
        OrderCase{"AnotherOperation", {"all_reduce of 3", "(root or operation 1)"}},
        OrderCase{"AnotherDtypeOfTheSameLength", {"4 x fp32", "4 x int32"}},
        OrderCase{"OneCallFewer", {"rank 0 has made a call that rank 1 has not: all_gather of 6 x fp32 over dp"}},
        OrderCase{"OtherNumbersOfRows", {"message 1 from rank 0 to rank 1", "message of 1 x rows", "message of 2 x rows"}},
        OrderCase{"AMessageOfAnotherLength",
                  {"message 1 from rank 0 to rank 1", "message of 3 x fp32 over dp", "message of 5 x fp32 over dp"}},
        OrderCase{"AMessageOnTheOtherSideOfACollective",
                  {"3 x fp32 over dp after 0 collectives", "3 x fp32 over dp after 1 collectives"}},
        OrderCase{"AShortMessageAlone", {"p2p over dp", "rank 0 sent 12 bytes where 20 were expected"}},
        OrderCase{"ALongMessageAlone", {"p2p over dp", "rank 0 sent more than the 12 bytes expected"}}),
    [](const auto& order) { return order.param.name; });

}  // namespace
}  // namespace ref5d::testing
