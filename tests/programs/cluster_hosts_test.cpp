// Several hosts on one machine. Needs root, Linux and the right to make network namespaces; skipped elsewhere.
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/support/io_testing.h"
#include "tests/support/program_testing.h"

namespace ref5d::testing {
namespace {

constexpr int kCannot = 3;  // the exit status of the tools where they cannot work

Outcome on_hosts(const std::string& arguments) {
  RunOptions options;
  options.deadline = 120;
  return run_binary("../../common/tools/cluster/mpiexec-hosts", words(arguments), options);
}

TEST(ClusterHosts, TheToolsOwnTest) {
  RunOptions options;
  options.deadline = 120;
  const Outcome run = run_binary("../../tests/cluster_hosts", {}, options);
  if (run.out.find("skipped: ") != std::string::npos) GTEST_SKIP() << run.out;
  EXPECT_EQ(run.exit_status, 0) << run.out << run.err;
}

// On links of 200 Mbit/s the bytes between hosts decide: hsdp sends a third of zero3's, zero2 two thirds.
TEST(ClusterHosts, FewerBytesBetweenHostsAreFasterSteps) {
  const TempDir dir;
  const Outcome run = on_hosts("--hosts 2 --ranks-per-host 2 --rate 200mbit " REF5D_BUILD_DIR
                               "/02_ddp_zero --experiment compare --steps 1 --no-verify --json " +
                               dir.path("r.json"));
  if (run.exit_status == kCannot) GTEST_SKIP() << run.err;
  ASSERT_EQ(run.exit_status, 0) << run.description();
  const Report report = read_report(dir.path("r.json"));
  EXPECT_EQ(failing(report), std::vector<std::string>{});
  bool between = false;
  for (const Claim& c : report.claims) between = between || c.name.starts_with("between nodes: hsdp");
  EXPECT_TRUE(between);  // the hosts were told apart
  for (const auto& [line, least] : {std::pair{"hsdp against zero3: ", 1.4}, {"zero2 against zero3: ", 1.1}}) {
    const std::size_t at = run.out.find(line);
    ASSERT_NE(at, std::string::npos) << run.out;
    EXPECT_GT(std::strtod(run.out.c_str() + at + std::string(line).size(), nullptr), least) << run.out;
  }
}

}  // namespace
}  // namespace ref5d::testing
