// The program 03_tensor_parallel, judged by its exit status and its report.
#include <gtest/gtest.h>

#include <algorithm>

#include "common/device/device.h"
#include "tests/support/io_testing.h"
#include "tests/support/program_testing.h"

namespace ref5d::testing {
namespace {

const std::string kTensorParallel = "03_tensor_parallel";
// Sizes that few numbers of ranks divide.
const std::string kUnevenShape = "--layers 2 --hidden 24 --heads 6 --ffn 23 --vocab 251 ";

Report passing_tensor_parallel(int ranks, const std::string& flags) { return passing_report(ranks, kTensorParallel, flags); }

// What NCCL sends is its own affair, so on GPUs of their own ranks count nothing.
bool claims_traffic() { return Device::mode() != "cuda"; }

// Checks in fp64 within 1e-11, and claims to the byte.
Report equal_to_one_device(int ranks, const std::string& flags) {
  SCOPED_TRACE(flags);
  Report report = passing_tensor_parallel(ranks, "--dtype fp64 " + flags);
  EXPECT_GT(report.checks.size(), 20u);
  for (const Check& c : report.checks) {
    // A key bias has no gradient but rounding, which AdamW makes an update of: those are not compared, only bounded.
    if (c.tolerance > 0 && c.name != "parameters/unknown elements") {
      EXPECT_EQ(c.tolerance, 1e-11) << c.name;
    }
  }
  for (const char* name :
       {"parameters, rank 0", "flops of linear layers in a step, rank 0", "a layer keeps of a micro-batch, rank 0"})
    EXPECT_TRUE(has_claim(report, name)) << name;
  for (const char* name : {"tp, forward: all-reduces of rank 0", "tp, everything: sent by all ranks"})
    EXPECT_TRUE(has_claim(report, name) || !claims_traffic()) << name;
  return report;
}

// Heads, columns and entries of the vocabulary that the ranks do not divide, and kv heads that several of them hold.
TEST(TensorParallel, P23_P25_UnevenSharesEqualOneDevice) {
  const Report report = equal_to_one_device(4, kUnevenShape + "--kv-heads 1 --check-order");
  ASSERT_EQ(report.mesh.size(), 5u);
  EXPECT_EQ(report.mesh[4], (std::pair<std::string, std::int64_t>{"tp", 4}));
  EXPECT_TRUE(has_claim(report, "tp, shared gradients: sent by all ranks") || !claims_traffic());
  (void)equal_to_one_device(4, kUnevenShape + "--kv-heads 2 --qk-norm --recompute full --grad-accum 3");
  (void)equal_to_one_device(4, kUnevenShape + "--kv-heads 3 --biases --recompute selective --check-order");
  (void)equal_to_one_device(5, kUnevenShape + "--kv-heads 6 --biases --qk-norm --tied --no-overlap");
  (void)equal_to_one_device(3, kUnevenShape + "--kv-heads 2 --documents pack --attention naive --gemm hand");
}

// Masks are drawn by place in the whole model, so ranks agree where they must and differ where they must (P27).
TEST(TensorParallel, P27_DropoutEqualsOneDevice) {
  (void)equal_to_one_device(4, kUnevenShape + "--kv-heads 2 --dropout 0.1 --recompute full --qk-norm");
  (void)equal_to_one_device(2, "--dropout 0.1 --recompute selective --biases --documents pad");
}

// A packed [q|k|v] weight stored [in, out], learned positions, and one table at both ends.
TEST(TensorParallel, P28_Gpt2EqualsOneDevice) {
  (void)equal_to_one_device(2, "--model tiny-gpt2 --dropout 0.1 --recompute full --check-order");
  (void)equal_to_one_device(4, "--model tiny-gpt2 " + kUnevenShape);
}

TEST(TensorParallel, RunsWithoutALauncher) {
  const Report report = equal_to_one_device(1, "--qk-norm --biases");
  for (const TrafficRow& t : report.traffic) EXPECT_EQ(t.total_wire_bytes, 0) << t.op;
}

// Each replica is cut; its ranks share gradients and optimizer state with those of the others that hold the same part.
TEST(TensorParallel, WithDataParallelismEqualsOneDevice) {
  const std::string flags = kUnevenShape + "--tp 2 --kv-heads 3 --qk-norm --grad-accum 2 --strategy ";
  for (const char* strategy : {"ddp", "zero3", "hsdp"}) (void)equal_to_one_device(4, flags + strategy + " --check-order");
  (void)equal_to_one_device(6, flags + "zero2 --biases --dropout 0.1");
  (void)equal_to_one_device(2, "--tp 1 --strategy zero1");
  for (const char* strategy : {"naive", "zero1"})
    (void)equal_to_one_device(4, std::string("--tp 2 --kv-heads 1 --grad-accum 2 --strategy ") + strategy);
}

TEST(TensorParallel, LowPrecision) {
  (void)passing_tensor_parallel(4, kUnevenShape + "--dtype bf16 --kv-heads 2 --qk-norm --biases");
  (void)passing_tensor_parallel(2, "--dtype fp32");
  (void)passing_tensor_parallel(4, "--dtype bf16 --tp 2 --kv-heads 1 --no-fp32-grads");
  for (const char* flags : {"--strategy zero3", "--strategy hsdp --reduce-dtype bf16", "--strategy zero2 --fused-grad-accum"})
    (void)passing_tensor_parallel(4, std::string("--dtype bf16 --tp 2 --qk-norm ") + flags);
}

TEST(TensorParallel, SamplesAreThoseOfOneDevice) {
  const std::string flags = kUnevenShape + "--kv-heads 2 --dtype fp64 --no-verify --sample 40";
  const auto sample = [](const Outcome& run) {
    EXPECT_EQ(run.exit_status, 0) << run.description();
    return run.out.substr(std::min(run.out.find("A sample, "), run.out.size()));
  };
  const std::string cut = sample(run_tiny_on(3, kTensorParallel, flags));
  EXPECT_GT(cut.size(), 40u);
  EXPECT_EQ(cut, sample(run_tiny_on(1, kTensorParallel, flags)));
}

// What a sample gathers is not a step's; and what comes after the training keeps one order, too.
TEST(TensorParallel, SamplesAreNotInTheTraffic) {
  (void)passing_tensor_parallel(2, "--sample 3");
  for (int turn = 0; turn < 3; ++turn) (void)passing_tensor_parallel(3, "--heads 3 --hidden 24 --sample 5 --check-order");
  (void)passing_tensor_parallel(4, "--tp 2 --experiment pairs --check-order");
}

TEST(TensorParallel, EverySabotageIsNoticed) {
  expect_sabotages_noticed(kTensorParallel, {{"no-input-sum", "gradients/"},
                                             {"bias-on-every-rank", "loss/step 2"},
                                             {"kv-gradients-unsummed", "gradients/model.layers.0.self_attn.k_proj.weight"},
                                             {"qk-norm-unsummed", "gradients/model.layers.*.self_attn.q_norm.weight"},
                                             {"padding-leaks", "loss/step 1"},
                                             {"own-maximum", "loss/step 1"},
                                             {"clamp-without-mask", "loss/step 1"},
                                             {"packed-as-one-block", "loss/step 1"},
                                             {"norm-counts-replicas", "grad norm/step 1"},
                                             {"norm-of-own-part", "grad norm/step 1"},
                                             {"drift", "replicas/"},
                                             {"own-dropout", "loss/step 1"}});
  // Where the user's flags allow it, in a layout of more axes.
  expect_one_error(run_tiny_on(4, kTensorParallel, "--quiet --tp 2 --strategy zero3 --sabotage kv-gradients-unsummed"), 1,
                   {"check failed: "});
  expect_one_error(run_tiny_on(3, kTensorParallel, "--quiet --heads 3 --hidden 24 --sabotage padding-leaks"), 1,
                   {"check failed: loss/step 1"});
}

// What is sent is compared with the formulas: a sum too few is missed there, too.
TEST(TensorParallel, ClaimsNoticeASumTooFew) {
  if (!claims_traffic()) GTEST_SKIP() << "NCCL's traffic is not claimed";
  const TempDir dir;
  (void)run_tiny_on(2, kTensorParallel, "--quiet --sabotage no-input-sum --json " + dir.path("r"));
  const Report report = read_report(dir.path("r"));
  for (const char* name : {"tp, backward: all-reduces of rank 0", "tp, everything: sent by all ranks"})
    EXPECT_TRUE(std::any_of(report.claims.begin(), report.claims.end(), [&](const Claim& c) {
      return c.name == name && !c.pass;
    })) << name;
}

// Of a model that fits no machine: cut over all ranks it needs half of what two copies do, as the messages say.
TEST(TensorParallel, MemoryIsThatOfTheParts) {
  if (Device::mode() == "cuda") GTEST_SKIP() << "a GPU's memory is not checked before it is asked for";
  const auto gib = [](const std::string& mesh) {
    const Outcome run = run_tiny_on(
        4, kTensorParallel, "--layers 1000 --hidden 8192 --heads 64 --kv-heads 8 --ffn 28672 --no-verify --quiet " + mesh);
    expect_one_error(run, 2, {"need at least ", "more of them along --tp"});
    return std::stod(run.err.substr(run.err.find("at least ") + 9));
  };
  EXPECT_NEAR(gib("--tp 4") / gib("--tp 2 --dp 2"), 0.5, 0.01);
}

// A mistake in whose way the user's flags stand, and other usage that cannot be: one line, and all ranks end.
TEST(TensorParallel, BadUsageIsOneLine) {
  expect_refusals(
      kTensorParallel,
      {{2, "--sabotage own-maximum --no-verify", {"--sabotage", "--no-verify"}},
       {2, "--sabotage own-maximum --tp 1", {"several ranks along tp"}},
       {1, "--sabotage own-maximum", {"mpiexec -n 2"}},
       {2, "--sabotage drifting", {"--sabotage drifting", "no-input-sum"}},
       {2, "--sabotage padding-leaks --vocab 256", {"does nothing", "--vocab"}},
       {2, "--sabotage padding-leaks --dtype bf16", {"does nothing", "--dtype bf16"}},
       {2, "--sabotage norm-counts-replicas --dtype bf16", {"does nothing", "--dtype bf16"}},
       {2, "--sabotage clamp-without-mask --init-std 0", {"does nothing", "--init-std"}},
       {2, "--sabotage kv-gradients-unsummed --model tiny-gpt2", {"does nothing", "--model"}},
       {2, "--sabotage qk-norm-unsummed --model tiny-gpt2", {"does nothing", "--model"}},
       {3, "--sabotage packed-as-one-block --heads 4 --kv-heads 4", {"does nothing", "--tp"}},
       {2, "--sabotage packed-as-one-block --model tiny", {"does nothing", "--model tiny-gpt2"}},
       {2, "--sabotage bias-on-every-rank --no-biases", {"does nothing", "--no-biases"}},
       {2, "--sabotage bias-on-every-rank --steps 1", {"does nothing", "--steps"}},
       {2, "--sabotage bias-on-every-rank --lr 0", {"does nothing", "--lr"}},
       {2, "--sabotage qk-norm-unsummed --no-qk-norm", {"does nothing", "--no-qk-norm"}},
       {2, "--sabotage kv-gradients-unsummed --kv-heads 2", {"does nothing", "--kv-heads"}},
       {2, "--sabotage own-dropout --dropout 0", {"does nothing", "--dropout"}},
       {2, "--sabotage own-dropout --dropout 1e-9", {"does nothing", "--dropout"}},
       {2, "--sabotage bias-on-every-rank --verify-steps 1", {"does nothing", "--verify-steps"}},
       {2, "--sabotage bias-on-every-rank --lr 1e-6", {"does nothing", "--lr"}},
       {2, "--sabotage bias-on-every-rank --lr 0.03", {"does nothing", "--lr"}},
       {2, "--sabotage bias-on-every-rank --dtype bf16 --lr 1e-4", {"does nothing", "--lr"}},
       {2, "--sabotage bias-on-every-rank --dtype bf16 --steps 2", {"does nothing", "--steps"}},
       {2, "--sabotage bias-on-every-rank --eps 1", {"does nothing", "--eps"}},
       {2, "--sabotage norm-counts-replicas --init-std 1e-4", {"does nothing", "--init-std"}},
       {2, "--sabotage packed-as-one-block --heads 4 --kv-heads 2", {"does nothing", "packed", "--kv-heads 4"}},
       {4, "--tp 3", {"--tp 3 does not fit 4 ranks"}},
       {3, "--tp 2 --dp 2", {"--dp 2 x --tp 2 does not fit 3 ranks"}},
       {8, "--tp 8 --heads 6 --hidden 24", {"--tp 8 cannot cut 6 heads", "use --tp 6 or less\n"}},
       {4, "--heads 4 --ffn 3", {"3 columns of the MLP", "use --tp 3 or less\n"}},
       {2, "--tp 0", {"--tp 0"}},
       {2, "--pp 2", {"--pp"}},
       {2, "--strategy zero", {"--strategy zero", "zero1"}},
       {2, "--shard-size 2", {"--shard-size", "hsdp"}},
       {4, "--tp 2 --strategy hsdp --shard-size 3", {"--shard-size 3", "2 data-parallel ranks"}},
       {2, "--experiment numbrs", {"did you mean numbers?"}},
       {2, "--link-mbit 5", {"--link-mbit", "--experiment overlap"}},
       {2, "--experiment loss --link-latency 5", {"--link-latency", "--experiment loss"}},
       {2, "--experiment pairs --virtual-trace /tmp/v", {"--virtual-trace", "--experiment pairs"}},
       {2, "--experiment overlap --virtual-trace /nonexistent/v", {"/nonexistent/v.no-overlap.json"}},
       {2, "--experiment overlap --virtual-trace /tmp/v --json /tmp/v.overlap.json", {"--json", "--virtual-trace"}}});
}

// A dump holds global tensors, whatever the layout: each head once, also where several ranks hold it.
TEST(TensorParallel, DumpsAreThoseOfOneDevice) {
  const struct {
    int ranks;
    const char *model, *layout, *batch_of_one_device;
  } kCases[] = {{3, "--heads 6 --kv-heads 2 --hidden 24 --ffn 23 --vocab 251 --qk-norm", "--grad-accum 2 --micro-batch 2",
                 "--grad-accum 1 --micro-batch 4"},
                {4, "--heads 4 --kv-heads 1 --biases", "--tp 2 --strategy zero3 --grad-accum 2 --micro-batch 1",
                 "--grad-accum 1 --micro-batch 4"},
                {2, "--model tiny-gpt2", "--grad-accum 1 --micro-batch 2", "--grad-accum 1 --micro-batch 2"}};
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.model);
    const TempDir dir;
    const auto flags = [&](const char* more, const char* file) {
      return std::string("--dtype fp64 --no-verify --quiet --dump-level full ") + c.model + " " + more + " --dump " +
             dir.path(file);
    };
    const Outcome cut = run_tiny_on(c.ranks, kTensorParallel, flags(c.layout, "cut"));
    ASSERT_EQ(cut.exit_status, 0) << cut.description();
    const Outcome whole = run_tiny(flags(c.batch_of_one_device, "whole"));
    ASSERT_EQ(whole.exit_status, 0) << whole.description();
    const Outcome compared = run_binary("compare", {dir.path("cut"), dir.path("whole"), "--tolerance", "1e-11"});
    EXPECT_EQ(compared.exit_status, 0) << compared.out << compared.err;
  }
}

// Two runs of one layout, and with what travels beside what: the same bits, in every tensor of a dump.
TEST(TensorParallel, OverlapChangesNoBit) {
  for (const char* flags :
       {"--kv-heads 1 --heads 6 --hidden 24 --qk-norm", "--dtype bf16 --tp 2 --strategy zero3 --dropout 0.1"}) {
    SCOPED_TRACE(flags);
    const TempDir dir;
    NamedTensors first;
    for (const char* overlap : {"--overlap", "--overlap", "--no-overlap"}) {
      const Outcome run =
          run_tiny_on(4, kTensorParallel,
                      std::string(flags) + " --no-verify --quiet --dump-level full --dump " + dir.path("d") + " " + overlap);
      ASSERT_EQ(run.exit_status, 0) << run.description();
      if (first.empty()) first = read_tensors(dir.path("d"));
      expect_identical(read_tensors(dir.path("d")), first);
    }
  }
}

// Continued as if never stopped: bit by bit on the same mesh; on another, with the same global batch, but for rounding.
TEST(TensorParallel, P14_ResumesOnTheSameMeshAndOnOthers) {
  const struct {
    int ranks;
    const char* layout;
  } kMeshes[] = {{2, "--tp 2 --grad-accum 4"}, {4, "--tp 2 --grad-accum 2 --strategy zero3"}};
  for (const auto& mesh : kMeshes) {
    SCOPED_TRACE(mesh.layout);
    for (const char* dtype : {"bf16", "fp64"}) {
      const TempDir dir;
      const std::string flags =
          std::string("--no-verify --quiet --heads 4 --kv-heads 1 --qk-norm --vocab 251 --micro-batch 1 ") + "--dtype " +
          dtype + " --dump " + dir.path("d") + " ";
      const std::string save = " --save " + dir.path("save"), resume = " --resume " + dir.path("save");
      const auto final_of = [&](int ranks, const std::string& more) {
        const Outcome run = run_tiny_on(ranks, kTensorParallel, flags + more);
        EXPECT_EQ(run.exit_status, 0) << run.description();
        return with_prefix(read_tensors(dir.path("d")), "final/");
      };
      const NamedTensors whole = final_of(mesh.ranks, std::string("--steps 4 ") + mesh.layout);
      (void)final_of(mesh.ranks, std::string("--steps 2 ") + mesh.layout + save);
      expect_identical(final_of(mesh.ranks, std::string("--steps 2 ") + mesh.layout + resume), whole);
      if (std::string(dtype) == "bf16") continue;
      for (const auto& [ranks, layout] : {std::pair{2, "--steps 2 --tp 1 --grad-accum 2 --strategy zero2"},
                                          {3, "--steps 2 --tp 3 --grad-accum 4"},
                                          {1, "--steps 2 --grad-accum 4"}}) {
        for (const auto& [name, values] : final_of(ranks, layout + resume)) {
          const std::vector<double> a = values.to_doubles(), b = whole.at(name).to_doubles();
          for (std::size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 1e-12) << name << ", " << layout;
        }
      }
    }
  }
}

TEST(TensorParallel, Experiments) {
  const struct {
    int ranks;
    std::string flags;
    std::vector<std::string> claims, of_traffic;
  } kCases[] = {
      {2,
       "numbers",
       {"numbers: columns of W^T: x times a column, rank 1: wrong ones", "numbers: terms summed: wrong ones",
        "numbers: embedding of tokens 1 4 2 5: what is found on rank 1: wrong ones", "numbers: lookups summed: wrong ones"},
       {}},
      {4,
       "pairs --kv-heads 2 " + kUnevenShape,
       {"pairs, column, row: operations", "pairs, column, column: operations",
        "pairs: operations of column, row / of column, column", "pairs, row, column: y and dx within tolerance",
        "pairs, row, row: y and dx within tolerance"},
       {"pairs, column, row: sent by all ranks", "pairs, row, column: sent by all ranks"}},
      {3,
       "loss --kv-heads 2 " + kUnevenShape,
       {"loss: of the parallel way, of the gathered way"},
       {"loss from gathered logits: sent by all ranks", "loss from three numbers a token: sent by all ranks"}},
      {1,
       "calculator",
       {"embedding and head of 128,256 x 8,192: more than 2 billion parameters",
        "embedding and head of 128,256 x 8,192 on one of 8 ranks", "flops per byte, llama-8b on 2 ranks"},
       {}}};
  for (const auto& c : kCases) {
    const Report report = passing_tensor_parallel(c.ranks, "--experiment " + c.flags + " --dtype fp64");
    for (const std::string& name : c.claims) EXPECT_TRUE(has_claim(report, name)) << name;
    for (const std::string& name : c.of_traffic) EXPECT_TRUE(has_claim(report, name) || !claims_traffic()) << name;
  }
}

TEST(TensorParallel, NumbersAreForTwoRanks) {
  const Outcome run = run_tiny_on(3, kTensorParallel, "--heads 3 --hidden 24 --no-verify --experiment numbers");
  EXPECT_EQ(run.exit_status, 0) << run.description();
  expect_contains(run.out, "numbers: left out, since it cuts a matrix of two columns; --tp 2 shows it\n");
}

// How many sums over tp were under way while the same rank computed.
int sums_beside_kernels(const std::string& trace, int rank) {
  const auto events = events_by_stream(trace, rank);
  const auto& kernels = events.at("compute");
  int count = 0;
  for (const TraceEvent& sum : events.at("tp")) {
    if (!sum.name.starts_with("all_reduce over tp")) continue;
    // Times are written to a thousandth of a microsecond.
    const auto beside = [&](const TraceEvent& k) { return std::max(k.begin, sum.begin) + 0.01 < std::min(k.end, sum.end); };
    count += std::any_of(kernels.begin(), kernels.end(), beside) ? 1 : 0;
  }
  return count;
}

// On a link so slow that whatever may run meanwhile does: two sums of each layer's backward and the output head's, and no more.
TEST(TensorParallel, EverySumThatMayTravelBesideKernelsDoes) {
  if (Device::mode() == "cuda") GTEST_SKIP() << "replays times that MODE=cpu records";
  const TempDir dir;
  const Outcome run = run_tiny_on(
      2, kTensorParallel,
      "--layers 3 --kv-heads 2 --grad-accum 1 --steps 1 --quiet --no-verify --experiment overlap --link-latency 50000 "
      "--virtual-trace " +
          dir.path("v"));
  ASSERT_EQ(run.exit_status, 0) << run.description();
  EXPECT_EQ(sums_beside_kernels(dir.path("v.overlap.json"), 0), 2 * 3 + 1);
  EXPECT_EQ(sums_beside_kernels(dir.path("v.no-overlap.json"), 0), 0);
}

// Whether a link hides anything takes a model whose layers take longer than a message.
TEST(TensorParallel, OverlapInVirtualTime) {
  if (Device::mode() == "cuda") GTEST_SKIP() << "replays times that MODE=cpu records";
  const TempDir dir;
  RunOptions options;
  options.ranks = 2;
  const Outcome run = run_binary(
      kTensorParallel,
      words("--experiment overlap --steps 1 --quiet --no-verify --virtual-trace " + dir.path("v") + " --json " + dir.path("r")),
      options);
  ASSERT_EQ(run.exit_status, 0) << run.description();
  const Report report = read_report(dir.path("r"));
  for (const char* name :
       {"exposed in virtual time: less with overlap than without", "overlap: final weights that are the same bits"})
    EXPECT_TRUE(has_claim(report, name)) << name;
  for (const char* name : {"v.overlap.json", "v.no-overlap.json"})
    EXPECT_TRUE(events_by_stream(dir.path(name)).contains("compute")) << name;
}

TEST(TensorParallel, TracesShowWhatTravelsBesideKernels) {
  if (Device::mode() == "cuda") GTEST_SKIP() << "a GPU may take longer to begin a kernel than to run it";
  const TempDir dir;
  for (const bool overlap : {true, false}) {
    const Outcome run = run_tiny_on(
        2, kTensorParallel,
        std::string("--layers 2 --hidden 256 --ffn 768 --kv-heads 2 --seq 64 --micro-batch 4 --no-verify --quiet ") +
            (overlap ? "--overlap" : "--no-overlap") + " --trace " + dir.path("t.json"));
    ASSERT_EQ(run.exit_status, 0) << run.description();
    for (int rank : {0, 1}) {
      const int beside = sums_beside_kernels(dir.path("t.json"), rank);
      EXPECT_EQ(beside > 0, overlap) << beside << " sums on rank " << rank;
    }
  }
}

}  // namespace
}  // namespace ref5d::testing
