// --save and --resume: exact continuation, damaged checkpoints, failed and interrupted saves.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <random>
#include <thread>

#include "common/io/file.h"
#include "common/io/safetensors.h"
#include "tests/support/io_testing.h"
#include "tests/support/program_testing.h"

namespace ref5d::testing {
namespace {

namespace fs = std::filesystem;

void expect_ok(const Outcome& run) { EXPECT_EQ(run.exit_status, 0) << run.description(); }

std::string quiet(const std::string& flags) { return flags + " --quiet --no-verify"; }

// Relative names of everything under a folder.
std::vector<std::string> listing(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    names.push_back(fs::relative(entry.path(), folder).string());
  std::sort(names.begin(), names.end());
  return names;
}

TEST(Checkpoint, ResumedTrainingIsBitwiseTheSame) {
  for (const char* flags :
       {"--dtype fp32", "--dtype bf16", "--dtype fp64 --clip 0.1", "--dtype fp32 --recompute full --dropout 0.1",
        "--dtype bf16 --recompute selective --dropout 0.1 --fused-grad-accum", "--model tiny-gpt2 --dropout 0.1 --dtype bf16",
        "--documents pack --grad-accum 3"}) {
    SCOPED_TRACE(flags);
    const TempDir dir;
    const std::string f = flags;
    expect_ok(run_tiny(quiet(f + " --steps 4 --dump " + dir.path("straight"))));
    expect_ok(run_tiny(quiet(f + " --steps 2 --save " + dir.path("ck"))));
    expect_ok(run_tiny(quiet(f + " --steps 2 --dump " + dir.path("resumed") + " --resume " + dir.path("ck"))));
    const NamedTensors straight = read_tensors(dir.path("straight")), resumed = read_tensors(dir.path("resumed"));
    expect_identical(with_prefix(straight, "final/"), with_prefix(resumed, "final/"));
    const auto all = straight.at("step_loss").to_doubles(), last = resumed.at("step_loss").to_doubles();
    EXPECT_EQ(std::vector<double>(all.begin() + 2, all.end()), last);
  }
}

TEST(Checkpoint, SavingAgainAfterResumingContinuesTheCount) {
  const TempDir dir;
  const std::string ck = dir.path("ck");
  expect_ok(run_tiny(quiet("--steps 1 --save " + ck)));
  expect_ok(run_tiny(quiet("--steps 2 --save " + ck + " --resume " + ck)));
  EXPECT_EQ(read_file(ck + "/latest"), "step_3\n");
  EXPECT_TRUE(fs::exists(ck + "/step_1/state.json"));
  expect_ok(run_tiny(quiet("--steps 1 --resume " + ck + "/step_1")));  // an older one, by its own name
}

TEST(Checkpoint, AnotherSeedOrBatchIsAnotherRun) {
  const TempDir dir;
  const std::string ck = dir.path("ck");
  expect_ok(run_tiny(quiet("--steps 1 --save " + ck)));
  for (const char* flags : {"--seed 77", "--grad-accum 9"}) {
    expect_one_error(run_tiny(quiet("--steps 1 --resume " + ck + " " + flags)), 2, {"state.json"});
  }
}

TEST(Checkpoint, OtherDataIsAnotherRun) {
  const TempDir dir;
  expect_ok(run_tiny(quiet("--steps 1 --save " + dir.path("ck"))));
  for (const char* flags : {"--seq 8", "--documents pack", "--data README.md"}) {
    SCOPED_TRACE(flags);
    RunOptions options;
    options.directory = REF5D_SOURCE_DIR;
    expect_one_error(run_tiny(quiet("--resume " + dir.path("ck") + " " + flags), options), 2, {"state.json", "other data"});
  }
}

// What else lies in the folder is not ours to remove.
TEST(Checkpoint, OnlyCheckpointsAreReplaced) {
  const TempDir dir;
  const std::string ck = dir.path("ck");
  fs::create_directories(ck + "/step_1");
  write_file(ck + "/step_1/pytorch_model.bin", "x");
  write_file(ck + "/step_1.5", "y");
  for (int i = 0; i < 2; ++i) expect_ok(run_tiny(quiet("--steps 1 --save " + ck)));
  EXPECT_EQ(read_file(ck + "/step_1/pytorch_model.bin"), "x");
  EXPECT_EQ(read_file(ck + "/step_1.5"), "y");
  expect_ok(run_tiny(quiet("--steps 1 --resume " + ck)));
}

TEST(Checkpoint, ProcessesThatSaveIntoOneFolderTakeTurns) {
  const TempDir dir;
  const std::string ck = dir.path("ck");
  for (int round = 0; round < 3; ++round) {
    std::vector<std::thread> savers;
    for (int i = 0; i < 4; ++i) savers.emplace_back([&] { expect_ok(run_tiny(quiet("--steps 1 --save " + ck))); });
    for (std::thread& t : savers) t.join();
    expect_ok(run_tiny(quiet("--steps 1 --resume " + ck)));
    EXPECT_EQ(listing(ck).size(), 5u) << "latest, one folder, its three files";
  }
}

TEST(Checkpoint, WhatKilledSavesLeftIsTakenAway) {
  const TempDir dir;
  const std::string ck = dir.path("ck");
  fs::create_directories(ck + "/step_1.partial.999999999");  // no process has this number
  fs::create_directories(ck + "/step_1.partial." + std::to_string(getpid()));
  expect_ok(run_tiny(quiet("--steps 1 --save " + ck)));
  EXPECT_FALSE(fs::exists(ck + "/step_1.partial.999999999"));
  EXPECT_TRUE(fs::exists(ck + "/step_1.partial." + std::to_string(getpid()))) << "its owner still runs";
}

TEST(Checkpoint, ResumedRunsVerify) {
  const TempDir dir;
  for (const char* flags : {"--dtype fp64", "--dtype fp32", "--dtype bf16"}) {
    SCOPED_TRACE(flags);
    expect_ok(run_tiny(quiet(std::string(flags) + " --save " + dir.path("ck"))));
    expect_ok(run_tiny(std::string(flags) + " --quiet --resume " + dir.path("ck")));
  }
}

// The same step saved twice leaves one checkpoint, and the first stays until the second is complete.
TEST(Checkpoint, TheSameStepSavedAgainReplacesItself) {
  const TempDir dir;
  const std::string ck = dir.path("ck");
  for (int seed = 1; seed <= 3; ++seed) expect_ok(run_tiny(quiet("--save " + ck + " --seed " + std::to_string(seed))));
  const std::string newest = read_file(ck + "/latest");
  EXPECT_EQ(std::count_if(fs::directory_iterator(ck), fs::directory_iterator(), [](const auto& e) { return e.is_directory(); }),
            1);
  EXPECT_TRUE(newest.starts_with("step_2")) << newest;
  expect_ok(run_tiny(quiet("--seed 3 --dump " + dir.path("resumed") + " --resume " + ck)));
  expect_ok(run_tiny(quiet("--seed 3 --dump " + dir.path("straight"))));
  expect_identical(with_prefix(read_tensors(dir.path("straight")), "final/"),
                   with_prefix(read_tensors(dir.path("resumed")), "init/"));
}

TEST(Checkpoint, ItsWeightsLoadAsAModel) {
  const TempDir dir;
  expect_ok(run_tiny(quiet("--save " + dir.path("ck") + " --dump " + dir.path("saved"))));
  for (const char* path : {"ck/step_2", "ck/step_2/model.safetensors"}) {
    expect_ok(run_tiny(quiet("--dump " + dir.path("loaded") + " --load " + dir.path(path))));
    expect_identical(with_prefix(read_tensors(dir.path("saved")), "final/"),
                     with_prefix(read_tensors(dir.path("loaded")), "init/"));
  }
}

class DamagedCheckpoint : public ::testing::Test {
 protected:
  void SetUp() override { expect_ok(run_tiny(quiet("--save " + ck_))); }
  void expect_refused(const std::vector<std::string>& parts, const std::string& flags = "") {
    expect_one_error(run_tiny("--quiet " + flags + " --resume " + ck_), 2, parts);
  }
  void put(const std::string& name, std::string_view content) const { (void)dir_.put("ck/" + name, content); }
  [[nodiscard]] std::string file(const std::string& name) const { return ck_ + "/" + name; }

  TempDir dir_;
  std::string ck_ = dir_.path("ck");
};

TEST_F(DamagedCheckpoint, MissingPieces) {
  for (const char* name : {"step_2/model.safetensors", "step_2/optimizer.safetensors", "step_2/state.json", "latest"}) {
    SCOPED_TRACE(name);
    const std::string content = read_file(file(name));
    fs::remove(file(name));
    expect_refused({ck_});
    put(name, content);
  }
  expect_ok(run_tiny(quiet("--resume " + ck_)));
  fs::remove_all(file("step_2"));
  expect_refused({ck_, "step_2"});
}

TEST_F(DamagedCheckpoint, TruncatedPieces) {
  for (const char* name : {"step_2/model.safetensors", "step_2/optimizer.safetensors", "step_2/state.json"}) {
    const std::string content = read_file(file(name));
    for (const std::size_t kept : {std::size_t{0}, std::size_t{5}, content.size() / 2, content.size() - 3}) {
      SCOPED_TRACE(std::string(name) + " cut to " + std::to_string(kept));
      put(name, content.substr(0, kept));
      expect_refused({file(name)});
    }
    put(name, content);
  }
}

// The last bytes are those of a tensor's last element.
TEST_F(DamagedCheckpoint, NumbersThatAreNotFinite) {
  for (const char* name : {"step_2/model.safetensors", "step_2/optimizer.safetensors"}) {
    SCOPED_TRACE(name);
    const std::string content = read_file(file(name));
    for (const auto last : {"\xff\xff", "\x80\x7f"}) {
      put(name, content.substr(0, content.size() - 2) + last);
      expect_refused({file(name), "infinity or a NaN"});
    }
    put(name, content);
  }
}

TEST_F(DamagedCheckpoint, NegativeSecondMoments) {
  const std::string path = file("step_2/optimizer.safetensors");
  NamedTensors moments = read_tensors(path);
  HostTensor& v = moments.at("v/model.norm.weight");
  std::vector<double> values = v.to_doubles();
  values.back() = -1e-9;
  v = HostTensor::from_doubles(values, v.shape, v.dtype);
  write_safetensors(path, moments, {});
  expect_refused({path, "v/model.norm.weight has a negative number"});
}

TEST_F(DamagedCheckpoint, SenselessState) {
  for (const char* state :
       {"{}", "[]", "2", R"({"step": "two"})", R"({"step": -5})", R"({"step": 1.5})", R"({"step": null})", "\xff\xfe"}) {
    SCOPED_TRACE(state);
    put("step_2/state.json", state);
    expect_refused({file("step_2/state.json")});
  }
}

TEST_F(DamagedCheckpoint, SenselessLatest) {
  for (const char* latest : {"", "\n", "..", "/etc", "step_2/../step_2", "step_9"}) {
    SCOPED_TRACE(latest);
    put("latest", latest);
    expect_refused({ck_, "latest"});
  }
}

TEST_F(DamagedCheckpoint, OfAnotherModel) {
  expect_refused({"model.safetensors", "[256, 16]", "[256, 32]"}, "--hidden 32");
  expect_refused({"model.safetensors", "model.layers.1."}, "--layers 2");
  expect_refused({"model.safetensors", "transformer.wte.weight"}, "--model tiny-gpt2");
  expect_refused({"model.safetensors", "q_norm"}, "--qk-norm");
  // What no weight shows.
  expect_refused({"state.json", "norm_eps 1e-05, not 1e-06"}, "--norm-eps 1e-6");
  expect_refused({"state.json", "rope_theta 10000.0, not 500000.0"}, "--rope-theta 500000");
  expect_refused({"state.json", "heads"}, "--heads 4 --kv-heads 2");
}

TEST_F(DamagedCheckpoint, NoCheckpointAtAll) {
  for (const std::string& path : {dir_.path("nowhere"), dir_.path(), dir_.put("file", "x")})
    expect_one_error(run_tiny("--quiet --resume " + path), 2, {path});
}

TEST(FailedSave, AFullDiskLeavesThePreviousCheckpoint) {
  const TempDir dir;
  const std::string ck = dir.path("ck");
  expect_ok(run_tiny(quiet("--save " + ck)));
  const std::vector<std::string> before = listing(ck);
  RunOptions full;
  for (const std::int64_t limit : {0, 3, 1000, 42'000, 60'000}) {  // in the weights, in the moments, in `latest`
    SCOPED_TRACE(limit);
    full.file_size_limit = limit;
    expect_one_error(run_tiny(quiet("--save " + ck), full), 3, {ck, "ulimit -f"});
    EXPECT_EQ(listing(ck), before);
    expect_one_error(run_tiny(quiet("--save " + dir.path("new")), full), 3, {dir.path("new")});
    EXPECT_FALSE(fs::exists(dir.path("new")));
  }
  expect_ok(run_tiny(quiet("--resume " + ck)));
}

TEST(FailedSave, AFolderThatCannotBeWritten) {
  const TempDir dir;
  RunOptions user;
  user.obey_permissions = true;
  fs::create_directory(dir.path("locked"));
  fs::permissions(dir.path("locked"), fs::perms::owner_read | fs::perms::owner_exec);
  for (const char* name : {"locked", "locked/new", "locked/a/b"})
    expect_one_error(run_tiny("--quiet --save " + dir.path(name), user), 2, {dir.path(name), "cannot be written"});
  EXPECT_TRUE(fs::is_empty(dir.path("locked")));
  fs::permissions(dir.path("locked"), fs::perms::owner_all);
  const std::string file = dir.put("file", "x");
  for (const std::string& path : {file, file + "/ck"})
    expect_one_error(run_tiny("--quiet --save " + path), 2, {path, "is a file"});
  expect_one_error(run_tiny("--quiet --no-verify --save /proc/ref5d"), 2, {"/proc/ref5d"});
}

// Whenever the process is killed, the newest checkpoint is complete: at every step of a save, and at any moment of a run.
TEST(InterruptedSave, LosesNothing) {
  const TempDir dir;
  const std::string ck = dir.path("ck");
  const std::string model = "--steps 1 --grad-accum 1 --hidden 64 --ffn 256 ";
  expect_ok(run_tiny(quiet(model + "--save " + ck)));
  const double whole = run_tiny(quiet(model + "--save " + ck)).seconds;
  std::mt19937 random(7);
  std::uniform_real_distribution<double> share(0.3, 1.1);
  int killed = 0;
  for (int i = 0; i < 40; ++i) {
    RunOptions options;
    options.kill_signal = i % 3 == 0 ? 15 : 9;
    if (i < 28) {
      options.kill_at = {ck, i / 2 + 1};
    } else {
      options.kill_after = whole * share(random);
    }
    const Outcome run = run_tiny(quiet(model + "--save " + ck), options);
    killed += run.exit_status == 128 + options.kill_signal ? 1 : 0;
    const Outcome next = run_tiny(quiet(model + "--resume " + ck));
    ASSERT_EQ(next.exit_status, 0) << "killed in run " << i << " after " << run.seconds << " of " << whole << " s; "
                                   << next.description();
  }
  EXPECT_GE(killed, 10) << "of 40 runs";
}

}  // namespace
}  // namespace ref5d::testing
