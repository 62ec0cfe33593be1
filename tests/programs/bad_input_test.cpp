// Bad usage and outputs that cannot be written: status 2 (or 3 where the machine is at fault), one line on stderr, nothing left
// behind.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <utility>

#include "common/device/error.h"
#include "common/io/file.h"
#include "tests/support/io_testing.h"
#include "tests/support/program_testing.h"

namespace ref5d::testing {
namespace {

namespace fs = std::filesystem;

#ifdef REF5D_CUDA
constexpr bool kCuda = true;
#else
constexpr bool kCuda = false;
#endif

// Runs in an empty folder with every output asked for, and expects a refusal that leaves the folder empty.
void expect_refused(const std::string& flags, const std::vector<std::string>& parts, RunOptions options = {}) {
  SCOPED_TRACE(flags);
  const TempDir dir;
  options.directory = dir.path();
  const Outcome run = run_tiny(flags + " --json r.json --trace t.json --dump d --save ck", options);
  expect_one_error(run, 2, parts);
  EXPECT_EQ(run.out, "");
  EXPECT_EQ(dir.entries(), 0);
}

TEST(BadUsage, FlagsThatBenchWouldIgnore) {
  for (const char* flags : {"--verify", "--no-verify", "--sabotage list", "--dump d", "--resume d"}) {
    const Outcome run = run_binary("bench", words(flags));
    EXPECT_EQ(run.exit_status, 2) << flags << ": " << run.description();
    EXPECT_NE(run.err.find("bench only measures"), std::string::npos) << flags << ": " << run.description();
    EXPECT_EQ(run.out, "") << flags;
  }
}

TEST(BadUsage, KernelsWithoutValuesToCompareWith) {
  expect_one_error(run_binary("kernels", words("--compare missing")), 2, {"cannot open missing"});
  expect_one_error(run_binary("kernels", words("--compare " REF5D_SOURCE_DIR "/LICENSE")), 2, {"not a safetensors file"});
  expect_one_error(run_binary("kernels", {}), 2, {"give one of --write FILE, --compare FILE"});
}

// OpenBLAS waits for ever for threads that OpenMP does not give it.
TEST(BadUsage, MoreThreadsThanOpenMpAllows) {
  if (kCuda) GTEST_SKIP() << "host threads are for the CPU";
  RunOptions options;
  options.environment = {"OMP_THREAD_LIMIT=1"};
  expect_one_error(run_binary("bench", words("--threads 2"), options), 2, {"--threads 2", "OMP_THREAD_LIMIT allows 1"});
  EXPECT_EQ(run_tiny("--steps 1 --gemm blas", options).exit_status, 0);
}

// Each thread's stack takes 8 MiB of addresses.
TEST(BadUsage, ThreadsThatTheSystemDoesNotGive) {
  if (kCuda) GTEST_SKIP() << "host threads are for the CPU";
  RunOptions options;
  options.environment = {"OMP_NUM_THREADS=200"};
  options.address_space_limit = std::int64_t{1} << 30;
  expect_one_error(run_tiny("--steps 1", options), 3, {"of 200 threads", "OMP_NUM_THREADS"});
}

TEST(BadUsage, SabotageThatCannotShow) {
  expect_refused("--sabotage no-division --grad-accum 1", {"no-division", "micro-batches"});
  expect_refused("--sabotage keep-gradients --steps 1", {"keep-gradients", "second step"});
  expect_refused("--sabotage redraw-dropout --dropout 0", {"redraw-dropout", "dropout"});
  expect_refused("--sabotage redraw-dropout --recompute selective", {"redraw-dropout", "full"});
  expect_refused("--sabotage decay-norms --weight-decay 0", {"decay-norms", "weight decay"});
  expect_refused("--sabotage accumulate-in-bf16 --dtype fp64", {"accumulate-in-bf16", "bf16"});
  expect_refused("--sabotage no-master --dtype fp32", {"no-master", "bf16"});
}

TEST(BadUsage, SabotageWithoutChecks) {
  expect_one_error(run_tiny("--sabotage no-division --no-verify"), 2, {"--sabotage", "--no-verify"});
}

TEST(BadUsage, UnknownFlags) {
  expect_refused("--micro-bacth 2", {"--micro-bacth", "did you mean --micro-batch?"});
  expect_refused("--hiden 16", {"did you mean --hidden?"});
  expect_refused("--frobnicate", {"--frobnicate", "--help"});
  expect_refused("tiny", {"tiny"});
  expect_refused("--steps", {"--steps"});
  expect_refused("--lr 1e-3 --lr 2e-3", {"--lr", "2 times"});
  expect_refused("--verify --no-verify", {"contradict"});
  expect_refused("--quiet=yes", {"--quiet"});
  for (const char* axis : {"--tp 2", "--dp 2", "--pp 2", "--cp 2", "--ep 2", "--comm nccl"})
    expect_refused(axis, {words(axis)[0]});
}

TEST(BadUsage, ShapesThatCannotBe) {
  expect_refused("--hidden 18 --heads 4 --kv-heads 4", {"--hidden 18", "--heads 4"});
  expect_refused("--heads 4 --kv-heads 3", {"--heads 4", "--kv-heads 3"});
  expect_refused("--hidden 6 --heads 2", {"head dim 3", "even"});
  expect_refused("--hidden 516 --heads 2", {"head dim 258", "256"});
  expect_refused("--model tiny-gpt2 --heads 2 --kv-heads 1", {"--kv-heads 2"});
  expect_refused("--model tiny-gpt2 --qk-norm", {"--qk-norm"});
  expect_refused("--model tiny-gpt2 --mlp swiglu", {"--mlp swiglu", "gate"});
  expect_refused("--norm rms", {"--norm", "rmsnorm", "layernorm"});
  for (const char* flag : {"--norm-eps 0", "--rope-theta 0", "--rope-theta -1", "--init-std -0.1", "--norm-eps nan"})
    expect_refused(flag, {std::string(flag).substr(0, std::string(flag).find(' '))});
  expect_refused("--heads 32 --kv-heads 32", {"--heads 32"});
}

TEST(BadUsage, NumbersOutOfRange) {
  for (const char* flag : {"--layers", "--hidden", "--heads", "--kv-heads", "--ffn", "--vocab", "--seq", "--micro-batch",
                           "--grad-accum", "--steps"}) {
    for (const char* value : {"0", "-1", "2.5", "x", "1e3", "99999999999999999999", "0x10", "nan"})
      expect_refused(std::string(flag) + " " + value, {flag, value});
  }
  for (const char* flag : {"--lr", "--weight-decay", "--clip", "--beta1", "--beta2", "--eps", "--dropout"}) {
    for (const char* value : {"-1", "nan", "inf", "1e999", "x", "1,5"})
      expect_refused(std::string(flag) + " " + value, {flag, value});
  }
  for (const char* flag : {"--dropout 1", "--beta1 1", "--beta2 1.5", "--eps 0", "--eps 1e-46", "--dropout 0.9999999999",
                           "--sample -1", "--seed -1", "--seed 1.5"})
    expect_refused(flag, {words(flag)[0]});
}

// Sizes within their flags' ranges whose product no machine holds: an error, not the system's out-of-memory killer.
TEST(BadUsage, SizesBeyondAnyMachine) {
  expect_refused("--micro-batch 16777216 --grad-accum 16777216", {"tokens per step"});
  expect_refused("--seq 16777216", {"too few"});
  const TempDir dir;
  std::string documents;
  for (int i = 0; i < 40'000; ++i) documents += "a\n\n";
  expect_refused("--seq 16777216 --documents pad --data " + dir.put("documents.txt", documents),
                 {"--documents pad", "40000 rows"});
  if (kCuda) return;  // there the device's allocator says so
  expect_refused("--hidden 16777216 --heads 65536 --kv-heads 65536", {"GiB"});
  expect_refused("--layers 100000 --hidden 65536 --heads 1024 --kv-heads 1024", {"GiB"});
  expect_refused("--vocab 16777216 --hidden 65536 --heads 256", {"GiB"});
  expect_refused("--micro-batch 16777216 --vocab 65536", {"GiB"});
}

TEST(BadUsage, UnknownChoices) {
  expect_refused("--model tiny-gpt3", {"tiny-gpt3", "tiny-gpt2"});
  expect_refused("--dtype fp16", {"fp16", "fp32"});
  expect_refused("--experiment recompte", {"did you mean recompute?"});
  expect_refused("--sabotage unknown", {"unknown", "mean-of-means"});
  expect_refused("--recompute some", {"selective"});
  expect_refused("--documents glue", {"pack"});
  expect_refused("--attention fast", {"flash"});
  if (!kCuda) expect_refused("--gemm tensor-core --dtype bf16", {"MODE=cuda"});
  expect_refused("--gemm tensor-core --dtype fp32", {"tensor-core"});
}

TEST(BadUsage, CombinationsThatContradict) {
  expect_refused("--load a --resume b", {"--load", "--resume"});
  expect_refused("--sample 5 --vocab 300", {"--sample", "256"});
  const TempDir dir;
  RunOptions here;
  here.directory = dir.path();
  expect_one_error(run_tiny("--dump-level full", here), 2, {"--dump FILE"});
  expect_one_error(run_tiny("--json same --dump same", here), 2, {"--json", "--dump", "same"});
  EXPECT_EQ(dir.entries(), 0);
}

// A lesson of one process under a launcher would train the same thing several times, over the same files.
TEST(BadUsage, SeveralRanks) {
  for (const auto& [size, rank] : {std::pair{"PMI_SIZE", "PMI_RANK"},
                                   {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
                                   {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID"}}) {
    RunOptions first, second, alone;
    first.environment = {std::string(size) + "=2", std::string(rank) + "=0"};
    expect_refused("", {"one process", "2 were started"}, first);
    second.environment = {std::string(size) + "=2", std::string(rank) + "=1"};
    const Outcome other = run_tiny("", second);
    EXPECT_EQ(other.exit_status, 2);
    EXPECT_EQ(other.out + other.err, "");  // rank 0 speaks for all
    alone.environment = {std::string(size) + "=1", std::string(rank) + "=0"};
    EXPECT_EQ(run_tiny("--quiet --no-verify", alone).exit_status, 0);
  }
  // An allocation of several tasks is not several processes: a batch script runs once.
  RunOptions batch;
  batch.environment = {"SLURM_NTASKS=8", "SLURM_PROCID=0", "SLURM_JOB_ID=1"};
  EXPECT_EQ(run_tiny("--quiet --no-verify", batch).exit_status, 0);
}

TEST(BadOutput, PathsThatCannotBeWritten) {
  for (const char* flag : {"--json", "--trace", "--dump"}) {
    SCOPED_TRACE(flag);
    const TempDir dir;
    const std::string f = std::string("--quiet ") + flag + " ";
    expect_one_error(run_tiny(f + dir.path("no/such/folder/x")), 2, {flag, dir.path("no/such/folder"), "does not exist"});
    expect_one_error(run_tiny(f + dir.path()), 2, {dir.path(), "is a folder"});
    RunOptions user;
    user.obey_permissions = true;
    fs::create_directory(dir.path("locked"));
    fs::permissions(dir.path("locked"), fs::perms::owner_read | fs::perms::owner_exec);
    expect_one_error(run_tiny(f + dir.path("locked/x"), user), 2, {dir.path("locked"), "cannot be written"});
    EXPECT_TRUE(fs::is_empty(dir.path("locked")));
  }
}

// What a run reads must still be there after it, however its path is spelled.
TEST(BadOutput, NoInputIsReplaced) {
  const TempDir dir;
  dir.put("text", "a text that somebody may need again");
  fs::create_directories(dir.path("run/step_2"));
  for (const std::string flag : {"--json", "--dump", "--trace"}) {
    expect_one_error(run_tiny("--data " + dir.path("text") + " " + flag + " " + dir.path("run/../text")), 2, {flag, "--data"});
    expect_one_error(run_tiny("--resume " + dir.path("run") + " " + flag + " " + dir.path("run/step_2/model.safetensors")), 2,
                     {flag, "--resume"});
  }
  expect_one_error(run_tiny("--json " + dir.path("same") + " --dump " + dir.path("run/../same")), 2, {"--json", "--dump"});
}

TEST(BadInput, APipeWithoutAWriterDoesNotHang) {
  const TempDir dir;
  ASSERT_EQ(::mkfifo(dir.path("pipe").c_str(), 0600), 0);
  for (const std::string flag : {"--data", "--load"})
    expect_one_error(run_tiny(flag + " " + dir.path("pipe")), 2, {dir.path("pipe")});
}

TEST(BadUsage, AnErrorIsOneLineWhateverItQuotes) { expect_one_error(run_tiny("--json /nowhere/a\001b"), 2, {"a?b"}); }

TEST(BadOutput, AFullDiskLeavesNoHalfWrittenFile) {
  for (const char* flag : {"--json", "--trace", "--dump"}) {
    SCOPED_TRACE(flag);
    const TempDir dir;
    const std::string old = dir.put("old", "the file of an earlier run");
    RunOptions full;
    full.file_size_limit = 2000;
    for (const std::string& path : {dir.path("new"), old}) {
      expect_one_error(run_tiny(std::string("--quiet --no-verify ") + flag + " " + path, full), 3, {path, "ulimit -f"});
      EXPECT_EQ(dir.entries(), 1);
    }
    EXPECT_EQ(fs::file_size(old), 26u);
    expect_one_error(run_tiny(std::string("--quiet --no-verify ") + flag + " /dev/full"), 3, {"/dev/full", "No space left"});
  }
}

TEST(BadOutput, StdoutThatCannotBeWritten) {
  RunOptions full;
  full.out_file = "/dev/full";
  for (const char* flags : {"--no-verify", "--no-verify --steps 200"}) {
    const Outcome run = run_tiny(flags, full);
    EXPECT_EQ(run.exit_status, 3) << run.description();
    EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << run.err;
  }
}

TEST(BadUsage, Compare) {
  const TempDir dir;
  ASSERT_EQ(run_tiny("--quiet --no-verify --dump " + dir.path("a")).exit_status, 0);
  const auto compare = [](const std::string& arguments) { return run_binary("compare", words(arguments)); };
  expect_one_error(compare(""), 2, {"A is missing"});
  expect_one_error(compare(dir.path("a")), 2, {"B is missing"});
  expect_one_error(compare(dir.path("a") + " " + dir.path("b")), 2, {dir.path("b")});
  expect_one_error(compare(dir.path("a") + " " + dir.put("text", "no dump at all")), 2, {dir.path("text")});
  expect_one_error(compare("--bitwise --tolerance 1 " + dir.path("a") + " " + dir.path("a")), 2, {"contradict"});
  expect_one_error(compare("--tolerance -1 " + dir.path("a") + " " + dir.path("a")), 2, {"--tolerance -1"});
  EXPECT_EQ(compare("--help").exit_status, 0);
}

// Whatever a file holds, an error is one line that a person can read.
TEST(BadUsage, ErrorsQuoteNoMoreThanALine) {
  const TempDir dir;
  std::string header = "{\"" + std::string(100000, 'a') + "\n\x1b[31m";
  while (header.size() % 8 != 0) header += ' ';
  std::string length(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(header.size() >> (8 * i) & 0xFF);
  write_file(dir.path("a"), length + header);
  for (const Outcome& run : {run_binary("compare", {dir.path("a"), dir.path("a")}), run_tiny("--load " + dir.path("a"))}) {
    expect_one_error(run, 2, {dir.path("a")});
    EXPECT_LT(run.err.size(), 3000u);
    EXPECT_EQ(run.err.find('\x1b'), std::string::npos);
  }
}

}  // namespace
}  // namespace ref5d::testing
