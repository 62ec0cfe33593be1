// The program 04_seq_context_parallel, judged by its exit status, its report and its files.
#include <gtest/gtest.h>

#include <algorithm>

#include "common/device/device.h"
#include "tests/support/io_testing.h"
#include "tests/support/program_testing.h"

namespace ref5d::testing {
namespace {

const std::string kLesson04 = "04_seq_context_parallel";
// Sizes that few numbers of ranks divide, and documents that begin and end on any of them.
const std::string kOddSequences = "--layers 2 --hidden 24 --heads 6 --ffn 23 --vocab 251 --seq 13 ";

// What NCCL sends is its own affair, so on GPUs of their own ranks count nothing.
bool sends_are_counted() { return Device::mode() != "cuda"; }

Report passing_seq_context(int ranks, const std::string& flags) { return passing_report(ranks, kLesson04, flags); }

// Checks in fp64 within 1e-11, and claims to the byte: those of the costs, and of what travels along `axes`.
Report equal_in_fp64(int ranks, const std::string& flags, const std::vector<std::string>& axes) {
  SCOPED_TRACE(flags);
  Report report = passing_seq_context(ranks, "--dtype fp64 " + flags);
  EXPECT_GT(report.checks.size(), 20u);
  for (const Check& c : report.checks) {
    // A key bias has no gradient but rounding, which AdamW makes an update of: those are not compared, only bounded.
    if (c.tolerance > 0 && c.name != "parameters/unknown elements") {
      EXPECT_EQ(c.tolerance, 1e-11) << c.name;
    }
  }
  for (const std::string name :
       {"flops of linear layers in a step", "flops of attention in a step", "a layer keeps of a micro-batch"}) {
    EXPECT_TRUE(has_claim(report, name + ", rank 0")) << name;
    EXPECT_TRUE(ranks == 1 || has_claim(report, name + ": other ranks that differ")) << name;
  }
  for (const std::string& axis : axes)
    for (const char* name :
         {", forward: operations of rank 0", ", backward: sent by all ranks", ", everything: sent by all ranks"})
      EXPECT_TRUE(has_claim(report, axis + name) || !sends_are_counted()) << axis << name;
  return report;
}

// Bytes that all ranks send along an axis in these phases.
std::int64_t sent(const Report& report, const std::string& axis, const std::vector<std::string>& phases) {
  std::int64_t bytes = 0;
  for (const TrafficRow& row : report.traffic)
    if (row.axis == axis && std::find(phases.begin(), phases.end(), row.phase) != phases.end()) bytes += row.total_wire_bytes;
  return bytes;
}

// Each kind and each layout, where the ranks do not divide the tokens and, for two, where a rank has a token more; packed
// documents; heads that ulysses cannot share evenly.
TEST(SeqContextParallel, P29_EveryKindEqualsOneDevice) {
  const Report report = equal_in_fp64(4, kOddSequences + "--kv-heads 2 --documents pack --check-order", {"cp"});
  ASSERT_EQ(report.mesh.size(), 5u);
  EXPECT_EQ(report.mesh[3], (std::pair<std::string, std::int64_t>{"cp", 4}));
  for (const char* flags : {"--cp-kind allgather --cp-layout striped --kv-heads 1 --qk-norm --documents pack",
                            "--cp-kind ulysses --cp-layout contiguous --kv-heads 3 --biases --recompute full",
                            "--cp-kind ulysses --ulysses-size 2 --kv-heads 2 --documents pack --recompute selective",
                            "--cp-kind ulysses --ulysses-size 1 --kv-heads 6",
                            "--cp-layout contiguous --no-overlap --kv-heads 3 --recompute selective --documents pad",
                            "--cp-kind allgather --kv-heads 2 --recompute full --strategy zero3 --attention naive"})
    (void)equal_in_fp64(4, kOddSequences + flags + " --check-order", {"cp"});
  (void)equal_in_fp64(2, "--seq 7 --micro-batch 1 --cp-layout striped", {"cp"});
  (void)equal_in_fp64(3, "--seq 4 --kv-heads 1", {"cp"});
  (void)equal_in_fp64(2, "--model tiny-gpt2 --dropout 0.1 --recompute full", {"cp"});
}

// Inputs kept cut and gathered again, or gathered; rows that the ranks do not divide.
TEST(SeqContextParallel, P21_SequenceParallelismEqualsOneDevice) {
  for (const char* keep : {"shard", "gathered"}) {
    const std::string sp = std::string("--sp --sp-keep ") + keep + " --check-order ";
    (void)equal_in_fp64(3, sp + kOddSequences + "--kv-heads 2 --qk-norm --micro-batch 1", {"tp"});
    (void)equal_in_fp64(2, sp + "--model tiny-gpt2 --dropout 0.1 --recompute full", {"tp"});
    const Report report = equal_in_fp64(4, sp + kOddSequences + "--kv-heads 3 --biases --recompute selective", {"tp"});
    EXPECT_TRUE(has_claim(report, "tp, shared gradients: sent by all ranks") || !sends_are_counted());
    EXPECT_EQ(report.mesh[4], (std::pair<std::string, std::int64_t>{"tp", 4}));
  }
}

// A reduce-scatter and an all-gather send what an all-reduce does; gathering the layers' inputs again is 10 units for 8.
TEST(SeqContextParallel, BytesOfSequenceParallelism) {
  if (!sends_are_counted()) GTEST_SKIP() << "NCCL's traffic is not counted";
  const auto of_layers = [](const std::string& flags) {
    return sent(passing_seq_context(2, "--tp 2 --layers 2 " + flags), "tp", {"forward", "backward"});
  };
  const std::int64_t without = of_layers(""), gathered = of_layers("--sp --sp-keep gathered"), shard = of_layers("--sp");
  EXPECT_GT(without, 0);
  EXPECT_EQ(gathered, without);
  EXPECT_EQ(4 * shard, 5 * gathered);
}

// Ranks along all three axes, and every strategy over dp x cp.
TEST(SeqContextParallel, P04_AllAxesEqualOneDevice) {
  const std::string flags = kOddSequences + "--kv-heads 3 --qk-norm --grad-accum 2 --dropout 0.1 ";
  for (const char* strategy : {"naive", "zero1", "hsdp"})
    (void)equal_in_fp64(4, flags + "--cp 2 --dp 2 --strategy " + strategy + " --check-order", {"cp"});
  (void)equal_in_fp64(4, flags + "--cp 2 --tp 2 --strategy zero2 --check-order", {"cp", "tp"});
  (void)equal_in_fp64(4, flags + "--cp 2 --tp 2 --sp --cp-kind ulysses --strategy zero3 --check-order", {"cp", "tp"});
  (void)equal_in_fp64(6, flags + "--cp 3 --tp 2 --sp --sp-keep gathered --cp-kind allgather", {"cp", "tp"});
  (void)equal_in_fp64(8, flags + "--cp 2 --tp 2 --dp 2 --sp --strategy zero3 --check-order", {"cp", "tp"});
  (void)equal_in_fp64(1, "--qk-norm --biases", {});
}

TEST(SeqContextParallel, LowPrecision) {
  for (const char* kind : {"ring", "allgather", "ulysses"})
    (void)passing_seq_context(2, std::string("--dtype bf16 --documents pack --seq 24 --cp-kind ") + kind);
  (void)passing_seq_context(4, "--dtype bf16 --cp 2 --tp 2 --sp --strategy zero3 --qk-norm --biases");
  (void)passing_seq_context(2, "--dtype fp32 --sp --sp-keep gathered");
}

TEST(SeqContextParallel, EverySabotageIsNoticed) {
  expect_sabotages_noticed(kLesson04, {{"norms-unsummed", "gradients/model.layers.0.input_layernorm.weight"},
                                       {"dropout-by-row", "loss/step 1"},
                                       {"local-positions", "loss/step 1"},
                                       {"labels-after-cut", "loss/step 1"},
                                       {"merge-without-maximum", "loss/step 1"},
                                       {"own-lse", "gradients/model.layers.0.self_attn.q_proj.weight"},
                                       {"rank-order", "loss/step 1"},
                                       {"skip-by-rank", "loss/step 1"},
                                       {"early-start", "loss/step 1"},
                                       {"trim", "loss/step 1"},
                                       {"ignore-documents", "loss/step 1"},
                                       {"dp-alone", "gradients/lm_head.weight"},
                                       {"divide-by-cp", "grad norm/step 1"}});
  // In a layout of more axes, and with another layout of the sequence.
  expect_one_error(run_tiny_on(4, kLesson04, "--quiet --cp 2 --tp 2 --sp --sabotage norms-unsummed"), 1, {"check failed: "});
  expect_one_error(run_tiny_on(4, kLesson04, "--quiet --cp-layout striped --sabotage local-positions"), 1,
                   {"check failed: loss/step 1"});
}

// Flags in whose way others stand, and layouts that cannot be: one line, and all ranks end.
TEST(SeqContextParallel, BadUsageIsOneLine) {
  expect_refusals(
      kLesson04,
      {{2, "--sp --tp 1", {"--sp", "--tp 1", "several ranks along tp"}},
       {2, "--sp-keep gathered", {"--sp-keep", "--sp left out"}},
       {2, "--tp 2 --cp-kind ring", {"--cp-kind", "--cp 1"}},
       {2, "--sp --cp-layout striped", {"--cp-layout", "--cp 1"}},
       {2, "--ulysses-size 2", {"--ulysses-size", "--cp-kind ring"}},
       {4, "--cp 3", {"--cp 3 does not fit 4 ranks"}},
       {4, "--cp 2 --tp 3", {"--cp 2", "--tp 3", "4 ranks"}},
       {3, "--cp 2 --dp 2", {"does not fit 3 ranks"}},
       {4, "--seq 3", {"--cp 4 cannot cut sequences of 3 tokens", "--cp 3 or less"}},
       {2, "--sp --seq 1 --micro-batch 1", {"--sp cannot cut", "1 token over 2 ranks"}},
       {4, "--sp --cp 2 --tp 2 --seq 3 --micro-batch 1", {"--sp cannot cut", "1 token over 2 ranks"}},
       {4, "--cp-kind ulysses", {"4 ranks cannot cut 2 heads", "--ulysses-size 2", "--cp-kind ring"}},
       {4, "--cp 2 --tp 2 --cp-kind ulysses", {"2 ranks cannot cut 1 head ", "--cp-kind ring"}},
       {4, "--cp-kind ulysses --ulysses-size 3 --heads 4", {"--ulysses-size 3 does not divide the 4 ranks along cp"}},
       {4, "--tp 4 --sp", {"cannot cut 2 heads"}},
       {2, "--shard-size 2", {"--shard-size", "hsdp"}},
       {2, "--link-mbit 5", {"--link-mbit", "--experiment"}},
       {2, "--sabotage own-lse --no-verify", {"--sabotage", "--no-verify"}},
       {2, "--sabotage own-lse --cp 1 --tp 2", {"several ranks along cp"}},
       {2, "--sabotage norms-unsummed --cp 2", {"several ranks along tp"}},
       {1, "--sabotage trim", {"mpiexec -n 2"}},
       {2, "--sabotage trimmed", {"--sabotage trimmed", "trim"}},
       {2, "--sabotage merge-without-maximum --init-std 0.1", {"does nothing", "--init-std"}},
       {2, "--sabotage own-lse --cp-kind ulysses", {"does nothing", "--cp-kind ring"}},
       {2, "--sabotage rank-order --cp-kind ring", {"does nothing", "--cp-kind allgather"}},
       {2, "--sabotage rank-order --cp-layout contiguous --micro-batch 1", {"does nothing", "--cp-layout"}},
       {2, "--sabotage skip-by-rank --cp-layout contiguous", {"does nothing", "--cp-layout"}},
       {2, "--sabotage trim --seq 16", {"does nothing", "--seq"}},
       {2, "--sabotage ignore-documents --documents pad", {"does nothing", "--documents"}},
       {2, "--sabotage dropout-by-row --dropout 0", {"does nothing", "--dropout"}},
       {2, "--sabotage dp-alone --strategy zero3", {"does nothing", "--strategy"}},
       {2, "--sabotage local-positions --init-std 0", {"does nothing", "--init-std"}},
       {2, "--sabotage local-positions --init-std 0.001", {"does nothing", "--init-std"}},
       {2, "--sabotage early-start --no-overlap", {"does nothing", "--no-overlap"}},
       {2, "--sabotage divide-by-cp --strategy naive", {"does nothing", "--strategy"}},
       {2, "--sabotage merge-without-maximum --dtype fp64", {"does nothing", "--dtype fp64"}},
       {2, "--sabotage merge-without-maximum --qk-norm", {"does nothing", "--qk-norm"}},
       {2, "--sabotage merge-without-maximum --load w", {"does nothing", "--load"}},
       {2, "--sabotage skip-by-rank --seq 3", {"does nothing", "--seq"}},
       {2, "--sabotage rank-order --seq 3 --micro-batch 1", {"does nothing", "--seq"}},
       {2, "--sabotage own-lse --init-std 1e-8", {"does nothing", "--init-std"}},
       {2, "--sabotage dropout-by-row --dropout 0.01 --seq 2", {"does nothing", "--dropout"}},
       {2, "--memory-cap 1e13", {"--memory-cap", "at most 1000000000"}},
       {2, "--experiment overlap --link-latency 1e308", {"--link-latency"}}});
}

// A rank that reaches its cap ends the run with one line, whether it was allocating weights or what a ring brings.
TEST(SeqContextParallel, AMemoryCapEndsTheRun) {
  for (const char* flags : {"--memory-cap 0.05", "--memory-cap 0.2 --seq 128 --no-verify", "--sp --memory-cap 0.08"}) {
    SCOPED_TRACE(flags);
    const Outcome run = run_tiny_on(2, kLesson04, std::string("--quiet ") + flags);
    EXPECT_EQ(run.exit_status, 3) << run.description();
    EXPECT_NE(run.err.find("pass the cap of"), std::string::npos) << run.err;
    EXPECT_EQ(run.err.find(kLesson04 + ": "), run.err.rfind(kLesson04 + ": ")) << run.err;
    EXPECT_EQ(run.out, "");
    EXPECT_LT(run.seconds, 10);
  }
  (void)passing_seq_context(2, "--memory-cap 2");
}

// Nothing is as large as the square of the sequence: what a rank holds of twice the tokens is twice as much.
TEST(SeqContextParallel, MemoryGrowsWithTheTokens) {
  RunOptions options;
  options.ranks = 4;
  const auto bytes_of_ranks = [&](std::int64_t tokens) {
    const TempDir dir;
    const Outcome run = run_binary(kLesson04,
                                   words("--cp 4 --micro-batch 1 --layers 1 --no-verify --steps 1 --quiet --seq " +
                                         std::to_string(tokens) + " --json " + dir.path("r")),
                                   options);
    EXPECT_EQ(run.exit_status, 0) << run.description();
    std::map<std::int64_t, std::int64_t> bytes;
    if (run.exit_status == 0)
      for (const MemoryRow& row : read_report(dir.path("r")).memory) bytes[row.rank] += row.peak_bytes;
    return bytes;
  };
  const auto half = bytes_of_ranks(4096), whole = bytes_of_ranks(8192);
  ASSERT_EQ(whole.size(), 4u);
  for (const auto& [rank, bytes] : whole) {
    EXPECT_LE(static_cast<double>(bytes), 2.1 * static_cast<double>(half.at(rank))) << rank;
    EXPECT_LT(bytes, 8192 * 8192) << rank;
  }
}

// A dump holds global tensors in the sequence's order, whatever the layout: every sublayer's, and their gradients.
TEST(SeqContextParallel, DumpsAreThoseOfASingleDevice) {
  const std::string llama = "--heads 4 --kv-heads 2 --qk-norm --biases --documents pack --seq 13";
  const struct {
    int ranks;
    std::string model;
    const char *layout, *batch_of_one_device;
  } kCases[] = {{4, llama, "--cp 2 --tp 2 --sp --grad-accum 2 --micro-batch 2", "--grad-accum 1 --micro-batch 4"},
                {4, llama, "--cp 4 --cp-kind ulysses --ulysses-size 2 --cp-layout striped --grad-accum 1 --micro-batch 2",
                 "--grad-accum 1 --micro-batch 2"},
                {4, llama, "--cp 2 --dp 2 --strategy zero3 --cp-kind allgather --grad-accum 2 --micro-batch 1",
                 "--grad-accum 1 --micro-batch 4"},
                {3, "--heads 3 --kv-heads 1 --hidden 24 --seq 13", "--sp --grad-accum 2 --micro-batch 1",
                 "--grad-accum 1 --micro-batch 2"},
                {2, "--model tiny-gpt2", "--grad-accum 1 --micro-batch 2", "--grad-accum 1 --micro-batch 2"}};
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.model + " " + c.layout);
    const TempDir dir;
    const auto flags = [&](const char* more, const char* file) {
      return "--dtype fp64 --no-verify --quiet --dump-level full " + c.model + " " + more + " --dump " + dir.path(file);
    };
    const Outcome cut = run_tiny_on(c.ranks, kLesson04, flags(c.layout, "cut"));
    ASSERT_EQ(cut.exit_status, 0) << cut.description();
    const Outcome whole = run_tiny(flags(c.batch_of_one_device, "whole"));
    ASSERT_EQ(whole.exit_status, 0) << whole.description();
    const Outcome compared = run_binary("compare", {dir.path("cut"), dir.path("whole"), "--tolerance", "1e-11"});
    EXPECT_EQ(compared.exit_status, 0) << compared.out << compared.err;
    EXPECT_EQ(read_tensors(dir.path("cut")).size(), read_tensors(dir.path("whole")).size());
  }
}

// Two runs of one layout, and with what travels beside what: the same bits, in every tensor of a dump.
TEST(SeqContextParallel, OverlapChangesNoBit) {
  for (const char* flags : {"--documents pack --seq 13", "--dtype bf16 --cp 2 --tp 2 --sp --strategy zero3 --dropout 0.1"}) {
    SCOPED_TRACE(flags);
    const TempDir dir;
    NamedTensors first;
    for (const char* overlap : {"--overlap", "--overlap", "--no-overlap"}) {
      const Outcome run = run_tiny_on(
          4, kLesson04, std::string(flags) + " --no-verify --quiet --dump-level full --dump " + dir.path("d") + " " + overlap);
      ASSERT_EQ(run.exit_status, 0) << run.description();
      if (first.empty()) first = read_tensors(dir.path("d"));
      expect_identical(read_tensors(dir.path("d")), first);
    }
  }
}

// Continued as if never stopped: bit by bit on the same mesh; on another, with the same global batch, but for rounding. And
// weights that one layout saved are another's to start from.
TEST(SeqContextParallel, P14_ResumesAndLoadsOnOtherMeshes) {
  const TempDir dir;
  const std::string flags =
      "--no-verify --quiet --heads 4 --qk-norm --seq 13 --micro-batch 1 --dtype fp64 --dump " + dir.path("d") + " ";
  const auto dump_of = [&](int ranks, const std::string& more) {
    SCOPED_TRACE(more);
    const Outcome run = run_tiny_on(ranks, kLesson04, flags + more);
    EXPECT_EQ(run.exit_status, 0) << run.description();
    return run.exit_status == 0 ? with_prefix(read_tensors(dir.path("d")), "final/") : NamedTensors();
  };
  const auto expect_close = [](const NamedTensors& tensors, const NamedTensors& expected, const std::string& what) {
    EXPECT_EQ(tensors.size(), expected.size()) << what;
    for (const auto& [name, values] : tensors) {
      const std::vector<double> a = values.to_doubles(), b = expected.at(name).to_doubles();
      for (std::size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 1e-12) << name << ", " << what;
    }
  };
  const std::string layout = "--cp 2 --tp 2 --sp --strategy zero3 --grad-accum 4 ", save = " --save " + dir.path("save");
  const NamedTensors whole = dump_of(4, layout + "--steps 4");
  const NamedTensors half = dump_of(4, layout + "--steps 2" + save);
  expect_identical(dump_of(4, layout + "--steps 2 --resume " + dir.path("save")), whole);
  for (const auto& [ranks, other] : {std::pair{2, "--cp 2 --cp-kind ulysses --grad-accum 4"},
                                     {3, "--cp 3 --cp-kind allgather --cp-layout striped --grad-accum 4"},
                                     {4, "--cp 2 --dp 2 --strategy hsdp --grad-accum 2"},
                                     {2, "--sp --grad-accum 4"},
                                     {1, "--grad-accum 4"}}) {
    expect_close(dump_of(ranks, std::string(other) + " --steps 2 --resume " + dir.path("save")), whole, other);
    expect_close(dump_of(ranks, std::string(other) + " --steps 1 --lr 0 --load " + dir.path("save/step_2")), half, other);
  }
}

// What a model that is cut says is what one device's does: of the same weights, and in the same random choices.
TEST(SeqContextParallel, SamplesAreThoseOfASingleDevice) {
  const std::string flags = kOddSequences + "--kv-heads 2 --dtype fp64 --no-verify --sample 40 ";
  const auto sample = [&](int ranks, const std::string& more) {
    const Outcome run = run_tiny_on(ranks, kLesson04, flags + more);
    EXPECT_EQ(run.exit_status, 0) << run.description();
    return run.out.substr(std::min(run.out.find("A sample, "), run.out.size()));
  };
  const std::string whole = sample(1, "");
  EXPECT_GT(whole.size(), 40u);
  for (const char* kind : {"ring", "allgather", "ulysses"})
    EXPECT_EQ(sample(3, std::string("--cp-kind ") + kind), whole) << kind;
  EXPECT_EQ(sample(2, "--sp"), whole);
  EXPECT_EQ(sample(4, "--cp 2 --tp 2 --sp --strategy zero3"), whole);
  (void)passing_seq_context(4, "--cp 2 --tp 2 --sp --sample 3 --check-order");  // and it is not in the traffic
}

// Messages of a rank's ring that are under way while it computes attention.
int messages_beside_attention(const std::string& trace, int rank) {
  const auto events = events_by_stream(trace, rank);
  int count = 0;
  for (const TraceEvent& message : events.at("cp")) {
    if (message.name.find("p2p") == std::string::npos) continue;
    // Times are written to a thousandth of a microsecond.
    const auto beside = [&](const TraceEvent& k) {
      return k.name.find("attention") != std::string::npos &&
             std::max(k.begin, message.begin) + 0.01 < std::min(k.end, message.end);
    };
    count += std::any_of(events.at("compute").begin(), events.at("compute").end(), beside) ? 1 : 0;
  }
  return count;
}

TEST(SeqContextParallel, TracesShowTheRingBesideAttention) {
  if (Device::mode() == "cuda") GTEST_SKIP() << "a GPU may take longer to begin a kernel than to run it";
  const TempDir dir;
  for (const bool overlap : {true, false}) {
    const Outcome run =
        run_tiny_on(2, kLesson04,
                    std::string("--layers 2 --hidden 64 --heads 4 --kv-heads 4 --seq 512 --no-verify --quiet ") +
                        (overlap ? "--overlap" : "--no-overlap") + " --trace " + dir.path("t.json"));
    ASSERT_EQ(run.exit_status, 0) << run.description();
    for (int rank : {0, 1}) {
      const int beside = messages_beside_attention(dir.path("t.json"), rank);
      EXPECT_EQ(beside > 0, overlap) << beside << " messages on rank " << rank;
    }
  }
}

}  // namespace
}  // namespace ref5d::testing
