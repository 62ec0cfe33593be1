// Dumps, the tool that compares them, determinism, and traces.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "common/io/file.h"
#include "common/io/safetensors.h"
#include "tests/support/io_testing.h"
#include "tests/support/program_testing.h"

namespace ref5d::testing {
namespace {

void dump(const std::string& path, const std::string& flags, const RunOptions& options = {}) {
  const Outcome run = run_tiny(flags + " --quiet --no-verify --dump " + path, options);
  EXPECT_EQ(run.exit_status, 0) << run.description();
}

Outcome compare(const std::string& flags, const std::string& a, const std::string& b) {
  std::vector<std::string> arguments = words(flags);
  arguments.insert(arguments.end(), {a, b});
  return run_binary("compare", arguments);
}

TEST(Determinism, TwoRunsAreByteIdentical) {
  const TempDir dir;
  for (const char* flags :
       {"--dtype fp32 --dump-level full", "--dtype bf16", "--dtype fp64 --dropout 0.2 --recompute full",
        "--model tiny-gpt2 --dump-level full", "--gemm hand --attention naive", "--documents pack --vocab 300"}) {
    SCOPED_TRACE(flags);
    dump(dir.path("a"), flags);
    dump(dir.path("b"), flags);
    EXPECT_TRUE(read_file(dir.path("a")) == read_file(dir.path("b")));
    const Outcome same = compare("--bitwise", dir.path("a"), dir.path("b"));
    EXPECT_EQ(same.exit_status, 0) << same.description();
  }
}

// Shapes large enough that the work is split over threads.
TEST(Determinism, TheNumberOfThreadsChangesNothing) {
  const TempDir dir;
  for (const char* shape : {"--hidden 64 --heads 4 --kv-heads 2 --ffn 96 --seq 48 --micro-batch 3",
                            "--model tiny-gpt2 --hidden 64 --heads 4 --ffn 96 --seq 48 --micro-batch 3 --dtype fp64"}) {
    SCOPED_TRACE(shape);
    dump(dir.path("a"), shape);
    RunOptions several, one, core;
    several.environment = {"OMP_NUM_THREADS=3"};
    one.environment = {"OMP_NUM_THREADS=1"};
    core.one_core = true;
    for (const RunOptions& options : {several, one, core}) {
      dump(dir.path("b"), shape, options);
      EXPECT_TRUE(read_file(dir.path("a")) == read_file(dir.path("b")));
    }
  }
}

TEST(Determinism, AnotherSeedDepartsFromTheFirstTensorOn) {
  const TempDir dir;
  dump(dir.path("a"), "--seed 1");
  dump(dir.path("b"), "--seed 2");
  for (const char* flags : {"--bitwise", ""}) {
    const Outcome other = compare(flags, dir.path("a"), dir.path("b"));
    EXPECT_EQ(other.exit_status, 1) << other.description();
    expect_contains(other.out, "first that departs: hidden/0");
    expect_contains(other.out, "the two do not start alike");
  }
}

TEST(Determinism, AccumulationAgreesWithinRounding) {
  const TempDir dir;
  dump(dir.path("one"), "--dtype fp64 --micro-batch 6 --grad-accum 1 --dump-level full");
  for (const char* split :
       {"--micro-batch 1 --grad-accum 6", "--micro-batch 2 --grad-accum 3", "--micro-batch 3 --grad-accum 2"}) {
    dump(dir.path("more"), std::string("--dtype fp64 --dump-level full ") + split);
    const Outcome same = compare("--tolerance 1e-11", dir.path("more"), dir.path("one"));
    EXPECT_EQ(same.exit_status, 0) << split << "\n" << same.description();
  }
}

// One changed bit of one tensor must be found and named.
TEST(Determinism, CompareNamesTheTensorThatWasChanged) {
  const TempDir dir;
  dump(dir.path("a"), "--dump-level full --layers 2");
  const SafetensorsFile file(dir.path("a"));
  NamedTensors tensors = read_tensors(dir.path("a"));
  const std::string changed = "sub/1/attn";
  tensors.at(changed).data[5] ^= std::byte{1};
  write_safetensors(dir.path("b"), tensors, file.metadata());
  const Outcome other = compare("--bitwise", dir.path("b"), dir.path("a"));
  EXPECT_EQ(other.exit_status, 1) << other.description();
  expect_contains(other.out, "first that departs: " + changed);
  expect_contains(other.out, "1 of ");
}

TEST(Dump, FullLevelHasEverySublayerOfTheGlobalBatch) {
  const TempDir dir;
  for (const char* model : {"--model tiny", "--model tiny-gpt2 --heads 2"}) {
    SCOPED_TRACE(model);
    dump(dir.path("d"), std::string(model) + " --layers 2 --micro-batch 3 --grad-accum 2 --dump-level full");
    const NamedTensors tensors = read_tensors(dir.path("d"));
    const bool grouped = std::string(model) == "--model tiny";
    const std::map<std::string, std::int64_t> channels{{"q", 16},        {"k", grouped ? 8 : 16}, {"v", grouped ? 8 : 16},
                                                       {"attn", 16},     {"o_proj", 16},          {"attn_norm", 16},
                                                       {"mlp_norm", 16}, {"mlp_in", 16},          {"mlp_out", 16}};
    auto expect_shape = [&](const std::string& name, const std::vector<std::int64_t>& shape) {
      ASSERT_TRUE(tensors.contains(name)) << name;
      EXPECT_EQ(tensors.at(name).shape, shape) << name;
      const std::vector<double> values = tensors.at(name).to_doubles();
      EXPECT_TRUE(std::any_of(values.begin(), values.end(), [](double v) { return v != 0; })) << name << " is all zero";
    };
    for (const char* layer : {"0", "1"}) {
      for (const auto& [what, width] : channels) {
        expect_shape(std::string("sub/") + layer + "/" + what, {6, 16, width});
        expect_shape(std::string("sub_grad/") + layer + "/" + what, {6, 16, width});
      }
      expect_shape(std::string("hidden/") + layer, {6, 16, 16});
    }
    expect_shape("logits", {6, 16, 256});
    expect_shape("tokens", {6, 16});
    expect_shape("labels", {6, 16});
    EXPECT_EQ(tensors.at("step_loss").numel(), 2);
    EXPECT_EQ(tensors.at("loss").to_doubles()[0], tensors.at("step_loss").to_doubles()[0]);
    const NamedTensors init = with_prefix(tensors, "init/"), grad = with_prefix(tensors, "grad/"),
                       last = with_prefix(tensors, "final/");
    EXPECT_FALSE(init.empty());
    for (const auto& [name, tensor] : init) {
      ASSERT_TRUE(grad.contains(name) && last.contains(name)) << name;
      EXPECT_EQ(grad.at(name).shape, tensor.shape);
      EXPECT_FALSE(last.at(name).data == tensor.data) << name << " was not trained";
    }
    EXPECT_EQ(init.size(), grad.size());
    EXPECT_EQ(init.size(), last.size());
  }
}

// What recomputation rebuilds is what was there; a dump in which it shows would send a reader the wrong way.
TEST(Dump, RecomputationDoesNotShow) {
  const TempDir dir;
  for (const char* flags :
       {"--layers 2 --dropout 0.1", "--model tiny-gpt2 --layers 2 --dropout 0.1", "--qk-norm --dtype bf16"}) {
    dump(dir.path("none"), std::string(flags) + " --dump-level full --recompute none");
    for (const char* kind : {"full", "selective"}) {
      SCOPED_TRACE(std::string(flags) + " " + kind);
      dump(dir.path(kind), std::string(flags) + " --dump-level full --recompute " + kind);
      expect_identical(read_tensors(dir.path("none")), read_tensors(dir.path(kind)));
    }
  }
}

// Watching a run must not change it.
TEST(Dump, DumpingAndTracingChangeNothing) {
  const TempDir dir;
  auto losses = [&](const std::string& flags) {
    const Outcome run = run_tiny(flags + " --no-verify --quiet --json " + dir.path("r.json"));
    EXPECT_EQ(run.exit_status, 0) << run.description();
    return read_report(dir.path("r.json")).loss;
  };
  const std::vector<double> plain = losses("");
  EXPECT_EQ(losses("--dump-level full --dump " + dir.path("d")), plain);
  EXPECT_EQ(losses("--trace " + dir.path("t")), plain);
}

TEST(Trace, NamesKernelsByStreamAndOverlapsTheCopy) {
  const TempDir dir;
  const Outcome run = run_tiny("--no-verify --quiet --steps 1 --grad-accum 3 --trace " + dir.path("t.json"));
  ASSERT_EQ(run.exit_status, 0) << run.description();
  const auto events = events_by_stream(dir.path("t.json"));
  ASSERT_TRUE(events.contains("compute") && events.contains("copy"));
  for (const auto& [stream, list] : events) {
    for (std::size_t i = 0; i + 1 < list.size(); ++i)
      EXPECT_LE(list[i].end, list[i + 1].begin + 1e-3) << stream << ": " << list[i].name << " runs into " << list[i + 1].name;
  }
  const auto& compute = events.at("compute");
  auto named = [&](const std::string& part) {
    std::vector<TraceEvent> some;
    std::copy_if(compute.begin(), compute.end(), std::back_inserter(some),
                 [&](const TraceEvent& e) { return e.name.find(part) != std::string::npos; });
    return some;
  };
  for (const char* kernel : {"rmsnorm_forward", "attention_forward", "gemm", "swiglu_backward", "adamw"})
    EXPECT_FALSE(named(kernel).empty()) << kernel;
  // One cross-entropy and one copy per micro-batch.
  const std::vector<TraceEvent> loss = named("cross_entropy"), &copies = events.at("copy");
  ASSERT_EQ(loss.size(), 3u);
  ASSERT_EQ(copies.size(), 3u);
  const std::vector<TraceEvent> backward_end = named("embedding_backward");
  ASSERT_EQ(backward_end.size(), 3u);
  for (std::size_t m = 0; m + 1 < 3; ++m) {
    EXPECT_LT(copies[m + 1].begin, backward_end[m].end)
        << "micro-batch " << m + 1 << " was copied after the one before it had ended";
    EXPECT_LE(copies[m + 1].end, loss[m + 1].begin);
  }
}

}  // namespace
}  // namespace ref5d::testing
