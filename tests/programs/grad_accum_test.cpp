// The program 01_grad_accum, judged by its exit status and its report.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <sstream>

#include "common/io/file.h"
#include "common/io/json.h"
#include "tests/support/io_testing.h"
#include "tests/support/program_testing.h"

namespace ref5d::testing {
namespace {

// Runs with --json and expects that everything holds; the report.
Report passing_run(const std::string& flags) {
  const TempDir dir;
  const Outcome run = run_tiny(flags + " --quiet --json " + dir.path("r.json"));
  EXPECT_EQ(run.exit_status, 0) << run.description();
  EXPECT_EQ(run.err, "");
  EXPECT_EQ(run.out, "");
  if (run.exit_status > 1) return {};
  Report report = read_report(dir.path("r.json"));
  EXPECT_EQ(failing(report), std::vector<std::string>{});
  return report;
}

std::set<std::string> groups(const Report& report) {
  std::set<std::string> out;
  for (const Check& c : report.checks) out.insert(c.name.substr(0, c.name.find('/')));
  return out;
}

TEST(GradAccum, Fp64MicroBatchesEqualOneBigBatch) {
  const Report report = passing_run("--dtype fp64 --micro-batch 1 --grad-accum 8 --steps 3");
  ASSERT_FALSE(report.checks.empty());
  for (const Check& c : report.checks) {
    EXPECT_LE(c.value, 1e-11) << c.name;
    EXPECT_EQ(c.tolerance, 1e-11) << c.name;
  }
  EXPECT_EQ(groups(report), (std::set<std::string>{"loss", "grad norm", "gradients", "parameters"}));
  ASSERT_EQ(report.loss.size(), 3u);
  ASSERT_EQ(report.baseline_loss.size(), 3u);
  EXPECT_NEAR(report.loss[0], std::log(256.0), 0.2);  // weights near zero predict every token alike
  bool activations = false;
  for (const Claim& c : report.claims) {
    if (!c.name.starts_with("activation peak")) continue;
    activations = true;
    EXPECT_GT(c.measured, 0);
    EXPECT_NEAR(c.measured / c.expected, 1, 0.02);
  }
  EXPECT_TRUE(activations);
}

// The documented schema, read as another program would read it.
TEST(GradAccum, ReportHasEveryField) {
  const TempDir dir;
  const Outcome run = run_tiny("--dtype bf16 --sabotage no-division --experiment batch --quiet --json " + dir.path("r.json"));
  EXPECT_EQ(run.exit_status, 1) << run.description();
  const Json r = Json::parse(read_file(dir.path("r.json")));
  for (const char* key : {"program", "version", "mode"}) EXPECT_FALSE(r.at(key).as_string().empty()) << key;
  for (const char* key : {"loss", "aux_loss", "baseline_loss", "checks", "traffic", "memory", "claims"})
    EXPECT_TRUE(r.at(key).is_array()) << key;
  EXPECT_EQ(r.at("program").as_string(), "01_grad_accum");
  for (const char* key : {"model",      "layers",       "hidden",     "heads",     "kv-heads",   "ffn",
                          "vocab",      "norm",         "position",   "mlp",       "biases",     "tied",
                          "norm-eps",   "rope-theta",   "init-std",   "seq",       "dropout",    "qk-norm",
                          "parameters", "micro-batch",  "grad-accum", "steps",     "seed",       "documents",
                          "lr",         "weight-decay", "clip",       "beta1",     "beta2",      "eps",
                          "dtype",      "recompute",    "gemm",       "attention", "fp32-grads", "fused-grad-accum",
                          "verify",     "sabotage",     "json",       "experiment"})
    EXPECT_TRUE(r.at("config").contains(key)) << key;
  EXPECT_EQ(r.at("config").at("hidden").as_int(), 16);
  EXPECT_EQ(r.at("config").at("experiment").as_string(), "batch");
  for (const char* axis : {"pp", "edp", "ep", "cp", "tp"}) EXPECT_EQ(r.at("mesh").at(axis).as_int(), 1);
  for (const char* key : {"step_ms", "tokens_per_s"}) EXPECT_GT(r.at("timing").at(key).as_double(), 0);
  for (const char* key : {"name", "measure", "value", "tolerance", "pass"}) EXPECT_TRUE(r.at("checks").at(0).contains(key));
  for (const char* key : {"rank", "category", "current_bytes", "peak_bytes"}) EXPECT_TRUE(r.at("memory").at(0).contains(key));
  for (const char* key : {"name", "expected", "measured", "pass"}) EXPECT_TRUE(r.at("claims").at(0).contains(key));
}

TEST(GradAccum, HoldsForEveryModelShape) {
  for (const char* flags : {"--dtype fp64", "--model tiny-gpt2 --dtype fp64", "--qk-norm --dtype fp64 --layers 2",
                            "--norm layernorm --position learned --mlp gelu --biases --tied --dtype fp64",
                            "--model tiny-gpt2 --norm rmsnorm --position rope --no-biases --no-tied --dtype fp64",
                            "--rope-theta 500000 --norm-eps 1e-6 --init-std 0.1 --biases --dtype fp64",
                            "--hidden 48 --heads 6 --kv-heads 2 --dtype fp64", "--vocab 257 --dtype fp64",
                            "--vocab 331 --seq 13 --ffn 7 --dtype fp64", "--model tiny-gpt2 --vocab 263 --seq 9 --hidden 22",
                            "--hidden 10 --heads 1 --kv-heads 1", "--hidden 4 --seq 1", "--seq 1 --qk-norm --dtype fp64",
                            "--model tiny-gpt2 --hidden 15 --heads 3 --dtype fp64"}) {
    SCOPED_TRACE(flags);
    passing_run(flags);
  }
}

TEST(GradAccum, HoldsForEverySetting) {
  for (const char* flags :
       {"--grad-accum 1", "--grad-accum 3 --micro-batch 1 --dtype fp64", "--grad-accum 5 --micro-batch 3 --dtype fp64",
        "--recompute none --layers 2", "--recompute full --layers 3 --dtype fp64",
        "--recompute selective --layers 2 --dtype fp64", "--attention naive --dtype fp64", "--gemm hand --dtype fp64",
        "--attention naive --gemm hand --recompute full", "--attention naive", "--documents pack --dtype fp64",
        "--documents pad --dtype fp64", "--documents pad --dtype bf16", "--dropout 0.1 --dtype fp64",
        "--dropout 0.1 --recompute selective --model tiny-gpt2", "--lr 0", "--clip 0 --weight-decay 0",
        "--beta1 0 --beta2 0"}) {
    SCOPED_TRACE(flags);
    passing_run(flags);
  }
}

TEST(GradAccum, HoldsInEveryPrecision) {
  for (const char* flags : {"--dtype fp32 --grad-accum 4", "--dtype bf16 --grad-accum 4",
                            "--dtype bf16 --grad-accum 4 --fused-grad-accum", "--dtype bf16 --no-fp32-grads --grad-accum 1",
                            "--dtype fp32 --fused-grad-accum", "--dtype bf16 --model tiny-gpt2 --gemm hand",
                            "--dtype bf16 --recompute full --dropout 0.1", "--dtype bf16 --attention naive --qk-norm"}) {
    SCOPED_TRACE(flags);
    passing_run(flags);
  }
}

// A bf16 weight costs 20 bytes with its gradient, the sum, the master and the moments.
TEST(GradAccum, LedgerCountsBytesPerParameter) {
  for (const auto& [flags, bytes] : {std::pair{"--dtype bf16", 20.0},
                                     {"--dtype bf16 --fused-grad-accum", 18.0},
                                     {"--dtype fp32", 16.0},
                                     {"--dtype bf16 --no-fp32-grads --fused-grad-accum", 16.0}}) {
    bool found = false;
    for (const Claim& c : passing_run(flags).claims) {
      if (c.name != "bytes per parameter in all") continue;
      found = true;
      EXPECT_EQ(c.measured, bytes) << flags;
    }
    EXPECT_TRUE(found);
  }
}

TEST(GradAccum, EverySabotageIsNoticed) {
  const Outcome list = run_binary("01_grad_accum", {"--sabotage", "list"});
  EXPECT_EQ(list.exit_status, 0);
  std::istringstream lines(list.out);
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const std::string name = line.substr(0, line.find(' '));
    EXPECT_GT(line.size(), name.size() + 10) << name << ": what it breaks is missing";
    for (const std::vector<std::string>& data : {std::vector<std::string>{}, {"--data", REF5D_SOURCE_DIR "/LICENSE"}}) {
      std::vector<std::string> arguments = {"--sabotage", name, "--quiet", "--layers", "2"};
      arguments.insert(arguments.end(), data.begin(), data.end());
      const Outcome run = run_binary("01_grad_accum", arguments);
      SCOPED_TRACE(run.description());
      EXPECT_EQ(run.exit_status, 1);
      EXPECT_EQ(run.out, "");
      expect_contains(run.err, "check failed: ");
      EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1);
    }
  }
  EXPECT_GE(count, 6);
}

// Whatever the text: long paragraphs fill most rows, and if all rows of a step are full, the mean of means is right.
TEST(GradAccum, MeanOfMeansIsNoticedInTheFirstStep) {
  std::string text;
  for (std::size_t i = 0; i < 30; ++i) text += std::string(500 + 37 * (i % 11), static_cast<char>('a' + i % 26)) + "\n\n";
  const TempDir dir;
  const std::string data = dir.put("paragraphs.txt", text);
  for (int seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE(seed);
    // Of the model alone; rows and micro-batches are the sabotage's own.
    const Outcome run = run_binary("01_grad_accum", {"--data", data, "--seed", std::to_string(seed), "--layers", "1",
                                                     "--hidden", "16", "--heads", "2", "--kv-heads", "1", "--ffn", "24",
                                                     "--sabotage", "mean-of-means", "--quiet", "--json", dir.path("r.json")});
    EXPECT_EQ(run.exit_status, 1) << run.description();
    if (run.exit_status > 1) continue;
    const std::vector<std::string> failed = failing(read_report(dir.path("r.json")));
    EXPECT_TRUE(
        std::any_of(failed.begin(), failed.end(), [](const std::string& name) { return name.starts_with("gradients/"); }));
  }
}

TEST(GradAccum, EveryExperimentHolds) {
  const Report report = passing_run("--experiment all");
  std::set<std::string> subjects;
  for (const Claim& c : report.claims) subjects.insert(c.name.substr(0, c.name.find_first_of(" :")));
  for (const char* subject : {"recompute", "attention", "precision", "fusion", "batch", "packing"})
    EXPECT_TRUE(subjects.contains(subject)) << subject;
}

// An experiment that needs another shape, dtype or text than the run's brings its own.
TEST(GradAccum, ExperimentsHoldWithTheRunsOtherFlags) {
  const TempDir dir;
  passing_run("--layers 2 --no-verify --save " + dir.path("saved"));
  const std::string short_text = dir.put("short.txt", "Three lines,\n\nof which the second\n\nand third are documents.\n");
  for (const std::string& flags :
       {"--layers 2 --load " + dir.path("saved/step_2") + " --experiment all", "--data " + short_text + " --experiment all",
        std::string("--vocab 4096 --experiment attention"), std::string("--vocab 512 --experiment recompute"),
        std::string("--vocab 150 --ffn 25 --experiment recompute"),
        std::string("--ffn 97 --heads 1 --kv-heads 1 --hidden 64 --experiment recompute"),
        std::string("--heads 8 --ffn 5000 --dtype bf16 --experiment attention"), std::string("--seq 1 --experiment packing"),
        std::string("--recompute full --dropout 0.1 --documents pad --experiment packing"),
        std::string("--dtype bf16 --micro-batch 3 --grad-accum 5 --experiment all"),
        std::string("--model tiny-gpt2 --seq 9 --experiment all")}) {
    SCOPED_TRACE(flags);
    passing_run("--no-verify " + flags);
  }
}

TEST(GradAccum, ExperimentsPrintTheirTables) {
  const Outcome run = run_tiny("--experiment all");
  EXPECT_EQ(run.exit_status, 0) << run.description();
  for (const char* title : {"Attention, one layer", "Batch arithmetic", "Fusion", "Bytes per parameter", "Packing"})
    expect_contains(run.out, title);
}

TEST(GradAccum, PrintsStepsTablesAndVerdict) {
  const Outcome run = run_tiny("--steps 3");
  EXPECT_EQ(run.exit_status, 0) << run.description();
  EXPECT_EQ(run.err, "");  // progress is for terminals
  for (const char* part :
       {"step 1/3 | loss ", "step 3/3 | loss ", " | grad norm ", " tok/s | ", " ms\n", "checks hold", "memory of rank 0"})
    expect_contains(run.out, part);
  EXPECT_EQ(run.out.find("traffic"), std::string::npos) << "one process has no traffic";
}

TEST(GradAccum, WithoutVerificationItOnlyTrains) {
  const Report report = passing_run("--no-verify --steps 4");
  EXPECT_EQ(report.loss.size(), 4u);
  EXPECT_TRUE(report.baseline_loss.empty());
  EXPECT_TRUE(report.checks.empty());
}

TEST(GradAccum, TrainingLowersTheLoss) {
  const Report report = passing_run("--no-verify --steps 60 --micro-batch 4");
  EXPECT_LT(report.loss.back(), report.loss.front() - 0.5);
}

TEST(GradAccum, SampleIsPrintable) {
  for (const char* flags : {"--sample 50 --no-verify", "--sample 50 --no-verify --model tiny-gpt2 --seq 8"}) {
    const Outcome run = run_tiny(flags);
    EXPECT_EQ(run.exit_status, 0) << run.description();
    const std::size_t at = run.out.find("A sample");
    ASSERT_NE(at, std::string::npos);
    const std::size_t text = run.out.find('\n', at) + 1;
    EXPECT_EQ(run.out.compare(text, 4, "The "), 0);
    EXPECT_GT(run.out.size(), text + 54);
    for (char c : run.out.substr(text, 54)) EXPECT_TRUE(c == '\n' || (c >= 32 && c < 127)) << static_cast<int>(c);
  }
}

TEST(GradAccum, HelpAndVersion) {
  const Outcome help = run_binary("01_grad_accum", {"--help"});
  EXPECT_EQ(help.exit_status, 0);
  EXPECT_EQ(help.err, "");
  for (const char* flag : {"--micro-batch", "--grad-accum", "--dtype", "--sabotage", "--experiment", "--resume"})
    expect_contains(help.out, flag);
  const Outcome version = run_binary("01_grad_accum", {"--version"});
  EXPECT_EQ(version.exit_status, 0);
  expect_contains(version.out, "01_grad_accum (ref5d ");
}

}  // namespace
}  // namespace ref5d::testing
