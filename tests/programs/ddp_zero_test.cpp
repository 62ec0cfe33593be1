// The program 02_ddp_zero, judged by its exit status and its report.
#include <gtest/gtest.h>

#include "common/device/device.h"
#include "common/io/file.h"
#include "tests/support/io_testing.h"
#include "tests/support/program_testing.h"

namespace ref5d::testing {
namespace {

const char* const kStrategies[] = {"naive", "ddp", "zero1", "zero2", "zero3", "hsdp"};

Report passing_run(int ranks, const std::string& flags) { return passing_report(ranks, "02_ddp_zero", flags); }

std::string strategy(const std::string& name) { return "--strategy " + name + " "; }

// Checks in fp64 within 1e-11, and claims to the byte, on sizes that the ranks do not divide.
TEST(DdpZero, EveryStrategyEqualsOneDevice) {
  for (const char* name : kStrategies) {
    const Report report = passing_run(3, strategy(name) + "--dtype fp64 --grad-accum 3 --hidden 20 --ffn 23 --check-order");
    for (const Check& c : report.checks) {
      if (c.tolerance > 0) {
        EXPECT_EQ(c.tolerance, 1e-11) << c.name;
      }
    }
    EXPECT_GT(report.claims.size(), 7u) << name;
    EXPECT_FALSE(report.traffic.empty());
    ASSERT_EQ(report.mesh.size(), 5u);
    EXPECT_EQ(report.mesh[1], (std::pair<std::string, std::int64_t>{"edp", 3}));
  }
}

TEST(DdpZero, RunsWithoutALauncher) {
  for (const char* name : kStrategies) {
    const Report report = passing_run(1, strategy(name) + "--dtype fp64");
    for (const TrafficRow& t : report.traffic) EXPECT_EQ(t.total_wire_bytes, 0) << t.op;
  }
}

TEST(DdpZero, LowPrecisionAndOtherModels) {
  for (const char* name : {"ddp", "zero1", "zero2", "zero3", "hsdp"}) {
    passing_run(4, strategy(name) + "--dtype bf16");
    passing_run(2, strategy(name) + "--dtype bf16 --reduce-dtype bf16 --fused-grad-accum");
    passing_run(2, strategy(name) + "--model tiny-gpt2 --dropout 0.1 --recompute full");
  }
}

TEST(DdpZero, VariantsOfStrategies) {
  passing_run(2, "--strategy ddp --sync-every-micro-batch --grad-accum 3");
  passing_run(2, "--strategy zero1 --sync-every-micro-batch --no-overlap --grad-accum 3");
  passing_run(3, "--strategy zero1 --all-reduce-gradients");
  passing_run(3, "--strategy zero2 --keep-full-gradients --grad-accum 3");
  passing_run(3, "--strategy zero3 --unit model");
  passing_run(3, "--strategy zero3 --no-prefetch --model tiny-gpt2");
  passing_run(4, "--strategy hsdp --shard-size 1");
  passing_run(4, "--strategy hsdp --shard-size 4");
}

// What a sample gathers is not a step's.
TEST(DdpZero, SamplesAreNotInTheTraffic) { (void)passing_run(2, "--strategy zero3 --sample 3"); }

// Sixteen ranks on however few cores there are (pitfall P60).
TEST(DdpZero, P60_SixteenRanks) {
  RunOptions options;
  options.ranks = 16;
  const Outcome run = run_binary("02_ddp_zero", words("--strategy zero3 --steps 3 --quiet"), options);
  EXPECT_EQ(run.exit_status, 0) << run.description();
  EXPECT_LT(run.seconds, 60);
}

TEST(DdpZero, EverySabotageIsNoticed) {
  expect_sabotages_noticed("02_ddp_zero", {{"reduce-before-summing", "gradients/"},
                                           {"skip-full-bucket", "gradients/"},
                                           {"no-stream-wait", "gradients/"},
                                           {"last-micro-batch-only", "gradients/"},
                                           {"decay-flat-buffer", "updates/"},
                                           {"epsilon-inside-root", "updates/"},
                                           {"norm-of-own-shard", "grad norm/step 1"},
                                           {"norm-counts-replicas", "grad norm/step 1"},
                                           {"no-weight-gather", "replicas/"},
                                           {"stale-weights", "loss/step 2"},
                                           {"local-label-count", "gradients/"},
                                           {"average-again", "gradients/"},
                                           {"drift", "replicas/"},
                                           {"own-seed", "replicas/"}});
  expect_one_error(run_tiny_on(2, "02_ddp_zero", "--quiet --sabotage drift --dtype bf16"), 1, {"check failed: "});
  // One of the groups that hold a shard, which is not rank 0's.
  expect_one_error(run_tiny_on(4, "02_ddp_zero", "--quiet --sabotage drift --strategy hsdp"), 1, {"replicas/"});
}

// The bits of what is trained do not depend on how gradients are bundled, nor on when they are sent.
TEST(DdpZero, P08_BucketsAndOverlapChangeNoBit) {
  const TempDir dir;
  NamedTensors first;
  for (const char* flags : {"--bucket-mb 0.001", "--bucket-mb 0", "--bucket-mb 100", "--no-overlap"}) {
    const Outcome run = run_tiny_on(3, "02_ddp_zero", std::string(flags) + " --no-verify --dump " + dir.path("d"));
    ASSERT_EQ(run.exit_status, 0) << run.description();
    if (first.empty()) first = read_tensors(dir.path("d"));
    expect_identical(read_tensors(dir.path("d")), first);
  }
}

// A dump holds global tensors, whatever the layout.
TEST(DdpZero, DumpsAreThoseOfOneDevice) {
  const TempDir dir;
  const std::string flags = "--dtype fp64 --no-verify --grad-accum 2 --micro-batch 1 --dump-level full ";
  for (const char* name : {"ddp", "zero3"}) {
    ASSERT_EQ(run_tiny_on(4, "02_ddp_zero", flags + strategy(name) + "--dump " + dir.path("four")).exit_status, 0);
    ASSERT_EQ(run_tiny("--dtype fp64 --no-verify --grad-accum 1 --micro-batch 8 --dump-level full --dump " + dir.path("one"))
                  .exit_status,
              0);
    const Outcome compared = run_binary("compare", {dir.path("four"), dir.path("one"), "--tolerance", "1e-11"});
    EXPECT_EQ(compared.exit_status, 0) << compared.out << compared.err;
  }
}

// Continued as if never stopped: bit by bit on the same ranks; on another number, with the same global batch, but for rounding.
TEST(DdpZero, P11_P14_ResumesOnTheSameRanksAndOnOthers) {
  const TempDir dir;
  for (const char* name : {"zero1", "zero3"}) {
    for (const char* dtype : {"bf16", "fp64"}) {
      const std::string flags = strategy(name) + "--no-verify --dtype " + dtype + " --dump " + dir.path("d") + " ";
      const std::string save = dir.path(std::string("save-") + name + dtype);
      const auto final_of = [&](int ranks, const std::string& more) {
        const Outcome run = run_tiny_on(ranks, "02_ddp_zero", flags + more);
        EXPECT_EQ(run.exit_status, 0) << run.description();
        return with_prefix(read_tensors(dir.path("d")), "final/");
      };
      const NamedTensors whole = final_of(4, "--steps 4 --grad-accum 3 --micro-batch 1");
      (void)final_of(4, "--steps 2 --grad-accum 3 --micro-batch 1 --save " + save);
      expect_identical(final_of(4, "--steps 2 --grad-accum 3 --micro-batch 1 --resume " + save), whole);
      if (std::string(dtype) == "bf16") continue;
      const NamedTensors on_three = final_of(3, "--steps 2 --grad-accum 4 --micro-batch 1 --resume " + save);
      for (const auto& [tensor, values] : on_three) {
        const std::vector<double> a = values.to_doubles(), b = whole.at(tensor).to_doubles();
        for (std::size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 1e-12) << tensor;
      }
    }
  }
}

TEST(DdpZero, Experiments) {
  const Report compared = passing_run(4, "--experiment compare --ranks-per-node 2 --grad-accum 3");
  for (const char* name : {"sent: ddp, no no_sync / ddp", "sent: zero1, all-reduce / zero1", "sent: zero3 / zero2",
                           "sent: zero2 / zero2, full gradients", "sent: hsdp / zero3", "between nodes: hsdp, by all ranks",
                           "between nodes: zero3, by all ranks"})
    EXPECT_TRUE(has_claim(compared, name)) << name;
  const Report buckets = passing_run(3, "--experiment buckets");
  for (const char* name : {"buckets of a parameter: reductions in a step", "buckets of everything: reductions in a step",
                           "bucket sizes: different numbers of bytes", "bucket sizes: different final weights"})
    EXPECT_TRUE(has_claim(buckets, name)) << name;
  const Report report = passing_run(1, "--experiment calculator");
  EXPECT_GT(report.claims.size(), 57u);
  if (Device::mode() == "cuda") return;  // overlap replays times that MODE=cpu records
  // Whether something is hidden at all takes a model whose layers take longer than a message.
  RunOptions options;
  options.ranks = 2;
  const Outcome run = run_binary("02_ddp_zero", words("--experiment overlap --steps 1 --quiet --no-verify"), options);
  EXPECT_EQ(run.exit_status, 0) << run.description();
}

TEST(DdpZero, TracesOfAllRanks) {
  const TempDir dir;
  const Outcome run = run_tiny_on(2, "02_ddp_zero", "--no-verify --quiet --trace " + dir.path("t.json"));
  ASSERT_EQ(run.exit_status, 0) << run.description();
  const std::string text = read_file(dir.path("t.json"));
  for (const char* part : {"rank 0", "rank 1", "all_reduce over dp"}) EXPECT_NE(text.find(part), std::string::npos) << part;
}

}  // namespace
}  // namespace ref5d::testing
