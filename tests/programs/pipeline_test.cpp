// The program 05_pipeline, judged by its exit status, its report and its files.
#include <gtest/gtest.h>

#include <algorithm>

#include "common/device/device.h"
#include "common/io/file.h"
#include "tests/support/io_testing.h"
#include "tests/support/program_testing.h"

namespace ref5d::testing {
namespace pipeline_program_test {

const std::string kLesson05 = "05_pipeline";
constexpr const char* kPublished[] = {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "dualpipe", "dualpipev"};

// What NCCL sends is its own affair, so on GPUs of their own ranks count nothing.
bool messages_are_counted() { return Device::mode() != "cuda"; }

Report passing_pipeline(int ranks, const std::string& flags) { return passing_report(ranks, kLesson05, flags); }

// Checks in fp64 within 1e-11, and the claims that every schedule has.
Report pipeline_equals_one_device(int ranks, const std::string& flags) {
  SCOPED_TRACE(flags);
  Report report = passing_pipeline(ranks, "--dtype fp64 --steps 2 " + flags);
  EXPECT_GT(report.checks.size(), 15u);
  for (const Check& c : report.checks) {
    // A key bias has no gradient but rounding, which AdamW makes an update of: those are not compared, only bounded.
    if (c.tolerance > 0 && c.name != "parameters/unknown elements") {
      EXPECT_EQ(c.tolerance, 1e-11) << c.name;
    }
  }
  EXPECT_TRUE(std::any_of(report.checks.begin(), report.checks.end(),
                          [](const Check& c) { return c.name == "grad norm/ranks that have another"; }));
  for (const std::string name :
       {"cells after which the ledger differs from what the schedule keeps", "flops of linear layers in a step"}) {
    EXPECT_TRUE(has_claim(report, name + ", rank 0")) << name;
    EXPECT_TRUE(has_claim(report, name + ": other ranks that differ")) << name;
  }
  for (const char* name : {"pp, boundaries: sent by all ranks", "pp, everything: sent by all ranks"})
    EXPECT_TRUE(has_claim(report, name) || !messages_are_counted()) << name;
  return report;
}

TEST(Pipeline, EveryScheduleEqualsOneDevice) {
  const std::string model = "--layers 4 --qk-norm --micro-batch 1 --documents pad --check-order ";
  std::size_t turn = 0;
  for (const char* name : kPublished) {
    const std::string more = turn++ % 2 == 0 ? "--tied " : "--grad-accum 1 --recompute full ";
    const Report report = pipeline_equals_one_device(2, model + more + "--schedule " + name);
    EXPECT_TRUE(has_claim(report, "idle time of a rank, if F, I and W take 1")) << name;
  }
  for (const char* name :
       {"interleaved --micro-batches 7", "zb-v --micro-batches 3 --poison", "dualpipe", "1f1b --micro-batches 1"})
    (void)pipeline_equals_one_device(4, "--layers 8 --micro-batch 1 --grad-accum 1 --tied --schedule " + std::string(name));
}

TEST(Pipeline, TheOtherAxesEqualOneDevice) {
  const std::string flags = "--layers 4 --heads 4 --kv-heads 2 --seq 13 --micro-batch 1 --dropout 0.1 --check-order ";
  (void)pipeline_equals_one_device(4, flags + "--pp 2 --tp 2 --sp --schedule zb-h1 --strategy zero1");
  (void)pipeline_equals_one_device(4, flags + "--pp 2 --cp 2 --schedule zb-v --recompute selective");
  (void)pipeline_equals_one_device(4, flags + "--pp 2 --cp 2 --cp-kind ulysses --schedule dualpipe --strategy zero2");
  (void)pipeline_equals_one_device(4, flags + "--pp 2 --dp 2 --strategy zero3");
  (void)pipeline_equals_one_device(4, flags + "--pp 2 --dp 2 --strategy hsdp --shard-size 2 --schedule gpipe");
  (void)pipeline_equals_one_device(4, flags + "--pp 2 --dp 2 --strategy zero2 --schedule interleaved --tied");
  (void)pipeline_equals_one_device(8, flags + "--pp 4 --cp 2 --schedule zb-h2 --tied");
  (void)pipeline_equals_one_device(8, flags + "--pp 2 --cp 2 --tp 2 --sp --schedule dualpipe");
  const Report report = pipeline_equals_one_device(8, flags + "--pp 2 --tp 2 --dp 2 --sp --strategy zero1 --schedule zb-h1");
  ASSERT_EQ(report.mesh.size(), 5u);
  EXPECT_EQ(report.mesh[0], (std::pair<std::string, std::int64_t>{"pp", 2}));
  EXPECT_EQ(report.mesh[4], (std::pair<std::string, std::int64_t>{"tp", 2}));
}

TEST(Pipeline, LowPrecision) {
  (void)passing_pipeline(2, "--layers 4 --dtype bf16 --schedule zb-h1 --tied");
  (void)passing_pipeline(2, "--layers 4 --dtype fp32 --schedule interleaved");
  (void)passing_pipeline(4, "--layers 4 --dtype bf16 --pp 2 --dp 2 --schedule dualpipe --strategy zero1");
}

// One stage alone, and stages that are cut unevenly.
TEST(Pipeline, StagesOfOtherSizes) {
  const Report report = pipeline_equals_one_device(2, "--layers 4 --stage-layers 3,1 --schedule zb-h1");
  EXPECT_TRUE(std::any_of(report.config.begin(), report.config.end(), [](const auto& entry) {
    return entry.first == "stage-layers" && entry.second == Value(std::string("3,1"));
  }));
  for (const char* layers : {"2,0", "0,2"})
    (void)pipeline_equals_one_device(2, "--layers 2 --stage-layers " + std::string(layers));
  (void)pipeline_equals_one_device(2, "--layers 2 --schedule interleaved --chunks 1");
  // A stage without a layer beside a tied weight, of which ZeRO-3 must gather what is here alone.
  for (const char* layers : {"2,1", "0,3", "3,0"})
    (void)pipeline_equals_one_device(
        4, "--layers 3 --tied --micro-batch 1 --pp 2 --dp 2 --strategy zero3 --stage-layers " + std::string(layers));
  (void)passing_pipeline(1, "--schedule zb-v --layers 2");
}

// Every mistake that can be planted fails the check that shows it.
TEST(Pipeline, EverySabotageIsNoticed) {
  expect_sabotages_noticed(kLesson05,
                           {{"early-reuse", "loss/step 1"},
                            {"weights-after-reduction", "gradients/"},
                            {"tied-unsummed", "gradients/model.embed_tokens.weight"},
                            {"tied-counts-twice", "grad norm/step 1"},
                            {"swapped-messages", "loss/step 1"},
                            {"mean-per-micro-batch", "gradients/"},
                            {"own-norm", "grad norm/ranks that have another"},
                            {"copies-unsummed", "gradients/"}},
                           "--layers 2 --hidden 16 --heads 2 --kv-heads 1 --ffn 24 --seq 16",
                           {{"weights-after-reduction", 4}});  // it needs two replicas of each stage
  for (const char* flags : {"--layers 6 --sabotage swapped-messages", "--layers 4 --sabotage copies-unsummed",
                            "--layers 4 --pp 2 --dp 2 --strategy zero1 --sabotage tied-unsummed"})
    expect_one_error(run_tiny_on(4, kLesson05, std::string("--quiet ") + flags), 1, {"check failed: "});
}

// Flags in whose way others stand, and schedules that cannot be: one line, and all ranks end.
TEST(Pipeline, BadUsageIsOneLine) {
  expect_refusals(kLesson05,
                  {{1, "--schedule 2f2b", {"--schedule", "1f1b"}},
                   {2, "--layers 4 --schedule dualpipe --micro-batches 5", {"dualpipe", "even", "5 micro-batches"}},
                   {2, "--layers 4 --schedule dualpipe --micro-batches 2", {"dualpipe", "2 x 2"}},
                   {3, "--layers 4 --schedule dualpipe", {"dualpipe", "even number of stages"}},
                   {2, "--layers 4 --schedule dualpipev --micro-batches 3", {"dualpipev", "2 x 2"}},
                   {4, "--layers 3 --schedule zb-v", {"has no layer", "--layers of at least 6"}},
                   {4, "--layers 1", {"stage 2 of 4 has no layer", "--layers of at least 2"}},
                   {1, "--layers 4 --schedule zb-v --strategy zero3", {"--strategy zero3", "zb-v", "gpipe or 1f1b"}},
                   {4, "--layers 4 --pp 2 --dp 2 --schedule dualpipe --strategy hsdp", {"--strategy hsdp", "dualpipe"}},
                   {1, "--chunks 3", {"--chunks", "--schedule 1f1b", "interleaved"}},
                   {1, "--group 2 --schedule gpipe", {"--group", "--schedule gpipe"}},
                   {1, "--schedule custom", {"--schedule custom", "CSV"}},
                   {1, "--schedule-file /nowhere/s.csv", {"/nowhere/s.csv"}},
                   {1, "--schedule gpipe --schedule-file /nowhere/s.csv", {"--schedule gpipe", "--schedule-file"}},
                   {2, "--layers 4 --stage-layers 3,2", {"--stage-layers 3,2", "4 layers"}},
                   {2, "--layers 4 --stage-layers 4", {"--stage-layers 4", "2 stages"}},
                   {3, "--layers 4 --stage-layers 2,0,2", {"stage 1 of 3 has no layer"}},
                   {2, "--layers 4 --stage-layers 4,x", {"--stage-layers", "x"}},
                   {4, "--pp 3", {"--pp 3 does not fit 4 ranks"}},
                   {4, "--pp 2 --tp 3", {"--pp 2", "--tp 3", "4 ranks"}},
                   {2, "--ep 2", {"--ep"}},
                   {1, "--sp", {"--sp", "--tp 1"}},
                   {1, "--sp-keep gathered", {"--sp-keep", "--sp left out"}},
                   {1, "--cp-kind ring", {"--cp-kind", "--cp 1"}},
                   {1, "--cp-layout striped", {"--cp-layout", "--cp 1"}},
                   {1, "--ulysses-size 2", {"--ulysses-size", "--cp-kind ring"}},
                   {1, "--no-overlap", {"--no-overlap", "--tp 1 and --cp 1"}},
                   {1, "--shard-size 2", {"--shard-size", "hsdp"}},
                   {1, "--link-mbit 5", {"--link-mbit", "--experiment"}},
                   {1, "--experiment schedules --link-latency 5", {"--link-latency", "--experiment schedules"}},
                   {1, "--virtual-trace v", {"--virtual-trace", "--experiment"}},
                   {1, "--experiment bubbles", {"--experiment", "bubble"}},
                   {1, "--micro-batches -1", {"--micro-batches", "-1"}},
                   {1, "--micro-batches 1e7", {"--micro-batches"}},
                   {4, "--tp 4 --pp 1", {"cannot cut 2 heads"}},
                   {1, "--sabotage early-reuse --no-verify", {"--sabotage", "--no-verify"}},
                   {1, "--sabotage early", {"--sabotage early", "early-reuse"}},
                   {1, "--sabotage early-reuse", {"ranks along pp", "mpiexec -n 2"}},
                   {2, "--sabotage weights-after-reduction --pp 2", {"2 ranks for each stage", "--dp 2"}},
                   {2, "--sabotage tied-unsummed --no-tied", {"does nothing", "--no-tied"}},
                   {2, "--sabotage tied-unsummed --schedule zb-v --layers 4", {"does nothing", "--schedule"}},
                   {2, "--sabotage copies-unsummed --schedule 1f1b", {"does nothing", "--schedule"}},
                   {2, "--sabotage own-norm --clip 0", {"does nothing", "--clip"}},
                   {2, "--sabotage early-reuse --init-std 1e-30", {"does nothing", "--init-std"}},
                   {2, "--schedule-file /dev/zero", {"/dev/zero is a device", "cells"}},
                   {4, "--pp 1 --cp 2 --tp 2 --sp --seq 3 --micro-batch 1", {"--sp cannot cut", "1 token over 2 ranks"}},
                   {2, "--sabotage mean-per-micro-batch --documents none", {"does nothing", "--documents"}},
                   {2, "--sabotage swapped-messages --schedule gpipe", {"does nothing", "--schedule"}},
                   {2, "--sabotage own-norm --init-std 1e-4", {"does nothing", "--init-std"}},
                   {1, "--print-schedule picture", {"--print-schedule", "grid"}}});
}

// Files that hold no schedule, or one for other ranks.
TEST(Pipeline, BadScheduleFilesAreOneLine) {
  const TempDir dir;
  const struct {
    const char* text;
    std::vector<std::string> parts;
  } kCases[] = {{"0F0,0B0\n1F0,1X0\n", {"1X0"}},
                {"0F0,0B0\n1F0\n", {"s.csv", "1B0 is missing"}},
                {"0F0,0B0,0F1\n1F0,1B0,1F1,1B1\n", {"0B1 is missing"}},
                {"0F0,0B0\n1B0,1F0\n", {"rank 1", "1F0 no earlier than 1B0"}},
                {"0F0,0B0\n1F0,1B0\n2F0,2B0\n", {"3 ranks"}},
                {"0F0,0F1,0B0,0B1\n1F1,1B1,1F0,1B0,\n0F2\n", {"rank"}},
                {"0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n", {"rank 0", "rank 1"}},
                {"", {"s.csv"}}};
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.text);
    write_file(dir.path("s.csv"), c.text);
    const Outcome run = run_tiny_on(2, kLesson05, "--layers 2 --schedule-file " + dir.path("s.csv"));
    expect_one_error(run, 2, c.parts);
    EXPECT_EQ(run.out, "");
  }
}

// Drawn, and written as a CSV that is read back.
TEST(Pipeline, SchedulesArePrintedAndReadBack) {
  const TempDir dir;
  const auto print = [](const std::string& flags) {
    const Outcome run = run_binary(kLesson05, words(flags));
    EXPECT_EQ(run.exit_status, 0) << run.description();
    EXPECT_EQ(run.err, "");
    return run.out;
  };
  const std::string grid = print("--pp 4 --micro-batches 8 --schedule zb-h1 --print-schedule");
  EXPECT_NE(grid.find("rank 3 |"), std::string::npos) << grid;
  EXPECT_NE(grid.find(" 27"), std::string::npos) << grid;
  EXPECT_EQ(print("--pp 4 --micro-batches 8 --schedule zb-h1 --print-schedule grid"), grid);
  for (const char* name : {"1f1b", "zb-v", "dualpipe"}) {
    const std::string csv = print("--pp 2 --micro-batches 4 --print-schedule csv --schedule " + std::string(name));
    EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 2) << csv;
    write_file(dir.path("s.csv"), csv);
    EXPECT_EQ(print("--pp 2 --print-schedule csv --schedule-file " + dir.path("s.csv")), csv);
    const Report report = passing_pipeline(2, "--dtype fp64 --layers 4 --schedule-file " + dir.path("s.csv"));
    const Report own = passing_pipeline(2, "--dtype fp64 --layers 4 --micro-batches 4 --schedule " + std::string(name));
    EXPECT_EQ(report.loss, own.loss) << name;
    EXPECT_EQ(report.loss.size(), 2u) << name;
  }
}

// The papers' bubbles and rates, what a pipeline sends beside other ways, and each schedule in virtual time.
TEST(Pipeline, ExperimentsHold) {
  for (const char* name : {"schedules", "zero-bubble", "deadlock"}) {
    const Report report = passing_pipeline(2, "--layers 4 --no-verify --steps 1 --experiment " + std::string(name));
    const auto of_it = [&](const Claim& c) { return c.name.starts_with(name); };
    EXPECT_TRUE(std::any_of(report.claims.begin(), report.claims.end(), of_it)) << name;
  }
  if (!messages_are_counted()) return;
  const Report report = passing_pipeline(2, "--layers 4 --no-verify --steps 1 --experiment traffic");
  for (const char* way : {"pp, 1f1b", "tp", "zero3"})
    EXPECT_TRUE(has_claim(report, std::string("traffic, ") + way + ": sent by all ranks in a step")) << way;
}

TEST(Pipeline, BubblesAreReplayed) {
  if (Device::mode() == "cuda") GTEST_SKIP() << "replays times that MODE=cpu records";
  const TempDir dir;
  const Outcome run = run_tiny_on(
      2, kLesson05, "--layers 4 --micro-batches 4 --no-verify --steps 1 --experiment bubble --virtual-trace " + dir.path("v"));
  ASSERT_EQ(run.exit_status, 0) << run.description();
  for (const std::string name : kPublished) {
    expect_contains(run.out, name);
    for (const char* times : {".unit.json", ".measured.json"}) {
      const auto cells = [&](int rank) { return events_by_stream(dir.path("v." + name + times), rank).at("pipeline").size(); };
      const std::size_t split = name.starts_with("zb") ? 3 : 2, chunks = name == "zb-v" || name == "interleaved" ? 2 : 1;
      for (int rank : {0, 1}) {
        EXPECT_TRUE(name.starts_with("dualpipe") || cells(rank) == 4 * split * chunks) << name << times << cells(rank);
        EXPECT_GT(cells(rank), 0u) << name << times;
      }
    }
  }
}

}  // namespace pipeline_program_test
}  // namespace ref5d::testing
