// The program 06_expert_parallel, judged by its exit status and its report.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "common/device/device.h"
#include "tests/support/io_testing.h"
#include "tests/support/program_testing.h"

namespace ref5d::testing {
namespace expert_parallel_program_test {

const std::string kLesson06 = "06_expert_parallel";
const std::string kTwoLayers = "--layers 2 --check-order ";

// What NCCL sends is its own affair, so on GPUs of their own ranks count nothing.
bool rows_are_counted() { return Device::mode() != "cuda"; }

bool has_check(const Report& report, const std::string& name) {
  return std::any_of(report.checks.begin(), report.checks.end(), [&](const Check& c) { return c.name == name; });
}

void expect_claims(const Report& report, const std::vector<std::string>& names) {
  for (const std::string& name : names) EXPECT_TRUE(has_claim(report, name)) << name;
}

// That rows travelled so, besides nothing else, and as many of them as the choices say.
void expect_claims_of_phases(const Report& report, const std::vector<std::string>& phases) {
  if (!rows_are_counted()) return;
  for (const char* phase : {"dispatch", "combine", "combine backward", "dispatch backward", "counts", "choices",
                            "recomputation", "everything but the norm"}) {
    const bool travels = std::find(phases.begin(), phases.end(), phase) != phases.end() || phase[0] == 'e';
    EXPECT_EQ(has_claim(report, std::string("ep, ") + phase + ": sent by all ranks in all steps"), travels) << phase;
  }
}

// Two steps of so many tokens, of all replicas and without padding, through two layers.
void expect_load(const Report& report, std::int64_t tokens, bool dropless = true) {
  ASSERT_EQ(report.experts.size(), 4U);
  for (std::size_t i = 0; i < 4; ++i) {
    const ExpertLoad& l = report.experts[i];
    EXPECT_EQ(l.step, static_cast<std::int64_t>(i / 2));
    EXPECT_EQ(l.layer, static_cast<std::int64_t>(i % 2));
    EXPECT_EQ(l.routed, tokens * 2);
    EXPECT_EQ(l.all_choices(), tokens * 2);
    ASSERT_EQ(l.choices.size(), 8U);
    ASSERT_EQ(l.rows.size(), 8U);
    EXPECT_GE(l.imbalance(), 1);
    EXPECT_LE(l.imbalance(), 8);
    for (std::size_t e = 0; e < 8; ++e) EXPECT_LE(l.rows[e], l.choices[e]);
    const std::int64_t kept = std::accumulate(l.rows.begin(), l.rows.end(), std::int64_t{0});
    EXPECT_DOUBLE_EQ(l.dropped(), 1 - static_cast<double>(kept) / static_cast<double>(l.routed));
    EXPECT_EQ(std::accumulate(l.rank_rows.begin(), l.rank_rows.end(), std::int64_t{0}), kept);
    EXPECT_GE(l.computed, kept);
    EXPECT_EQ(l.dropped() == 0, dropless) << l.dropped();
  }
}

Report passing_experts(int ranks, const std::string& flags) {
  Report report = passing_report(ranks, kLesson06, kTwoLayers + flags);
  EXPECT_TRUE(has_check(report, "aux loss/step 1") && has_check(report, "grad norm/ranks that have another")) << flags;
  EXPECT_EQ(report.aux_loss.size(), 2U) << flags;
  for (const double loss : report.aux_loss) EXPECT_GT(loss, 0) << flags;
  expect_claims(report, {"rows that were sent to experts, all ranks", "flops of routed experts in the first step, all ranks",
                         "memory of rank 0: parameters", "memory of rank 0: optimizer"});
  const bool padding = flags.find("--documents") != std::string::npos;
  EXPECT_EQ(has_claim(report, "choices that the routers counted, all ranks"), !padding) << flags;
  EXPECT_EQ(has_claim(report, "memory of the other ranks: categories that differ from the formulas"), ranks > 1) << flags;
  return report;
}

// Checks in fp64 within 1e-11.
Report experts_equal_one_device(int ranks, const std::string& flags) {
  SCOPED_TRACE(flags);
  Report report = passing_experts(ranks, "--dtype fp64 " + flags);
  EXPECT_GT(report.checks.size(), 50U);
  for (const Check& c : report.checks) {
    if (c.tolerance > 0) {
      EXPECT_EQ(c.tolerance, 1e-11) << c.name;
    }
  }
  return report;
}

TEST(ExpertParallel, TwoRanksEqualOneDevice) {
  const Report report = experts_equal_one_device(2, "");
  ASSERT_EQ(report.mesh.size(), 5U);
  EXPECT_EQ(report.mesh[2], (std::pair<std::string, std::int64_t>{"ep", 2}));
  expect_claims_of_phases(report, {"dispatch", "combine", "combine backward", "dispatch backward", "counts"});
  expect_load(report, 2 * 2 * 32);
  const Report deepseek = experts_equal_one_device(2, "--model tiny-deepseek --documents pad --no-overlap");
  EXPECT_TRUE(has_check(deepseek, "buffers/model.layers.*.mlp.gate.e_score_correction_bias"));
  ASSERT_EQ(deepseek.experts.size(), 4U);
  EXPECT_LT(deepseek.experts[0].all_choices(), deepseek.experts[0].routed) << "padding is routed, but nobody's choice";
}

// Between nodes a token travels once for each node, whatever its experts there; to all ranks it goes whatever they are.
TEST(ExpertParallel, OtherWaysEqualOneDevice) {
  const Report hierarchical = experts_equal_one_device(4, "--dispatcher hierarchical --ranks-per-node 2");
  expect_claims_of_phases(hierarchical, {"dispatch", "combine", "combine backward", "dispatch backward", "counts", "choices"});
  expect_load(hierarchical, 4 * 2 * 32);
  const Report all = experts_equal_one_device(2, "--dispatcher allgather --experts 7");
  expect_claims_of_phases(all, {"dispatch", "combine", "combine backward", "dispatch backward"});
  const Report edp = experts_equal_one_device(4, "--ep 2 --dp 4 --strategy zero2");
  EXPECT_EQ(edp.mesh[1], (std::pair<std::string, std::int64_t>{"edp", 2}));
}

// Counted once, though a layer's forward runs twice.
TEST(ExpertParallel, P54_RecomputationCountsNothingTwice) {
  const Report once = passing_experts(2, ""), again = passing_experts(2, "--recompute full");
  expect_claims_of_phases(again, {"dispatch", "combine", "combine backward", "dispatch backward", "counts", "recomputation"});
  expect_load(again, 2 * 2 * 32);
  ASSERT_EQ(once.experts.size(), again.experts.size());
  for (std::size_t i = 0; i < once.experts.size(); ++i) {
    EXPECT_EQ(once.experts[i].choices, again.experts[i].choices);
    EXPECT_EQ(once.experts[i].rows, again.experts[i].rows);
  }
  EXPECT_EQ(once.loss, again.loss);
  EXPECT_EQ(once.aux_loss, again.aux_loss);
}

// A report has what the run was set to, given or not, and an auxiliary loss where there is one.
TEST(ExpertParallel, ReportsSayHowExpertsAreChosen) {
  const Report given = passing_report(2, kLesson06, kTwoLayers + "--top-k 3 --capacity-factor 1.25 --aux-coef 0");
  const auto setting = [&](const char* key) {
    const auto found = std::find_if(given.config.begin(), given.config.end(), [&](const auto& v) { return v.first == key; });
    return found == given.config.end() ? Value(std::string("none")) : found->second;
  };
  EXPECT_EQ(setting("experts"), Value(std::int64_t{8}));
  EXPECT_EQ(setting("top-k"), Value(std::int64_t{3}));
  EXPECT_EQ(setting("score"), Value(std::string("softmax")));
  EXPECT_EQ(setting("renormalise"), Value(true));
  EXPECT_EQ(setting("capacity-factor"), Value(1.25));
  EXPECT_EQ(setting("aux-coef"), Value(0.0));
  EXPECT_EQ(setting("bias-speed"), Value(0.0));
  EXPECT_EQ(given.aux_loss, std::vector<double>{});
  EXPECT_FALSE(has_check(given, "aux loss/step 1"));
  const auto lines = [](const std::string& flags) {
    return run_tiny_on(1, kLesson06, "--layers 2 --steps 1 --micro-batch 1 --grad-accum 1 " + flags).out;
  };
  EXPECT_NE(lines("").find(" | aux loss 0."), std::string::npos);
  EXPECT_EQ(lines("--aux-coef 0").find("aux loss"), std::string::npos);
  EXPECT_NE(lines("--no-verify").find("no choices are kept"), std::string::npos);
  EXPECT_NE(lines("--route-replay own --dtype bf16").find("choices are not those of the fp64 baseline"), std::string::npos);
}

// Two steps of 2 x 16 tokens, 2 choices of each in 2 layers. Where choices are replayed, none can be others.
TEST(ExpertParallel, ReportsCountChoicesThatAreNotTheBaselines) {
  constexpr std::int64_t kAll = 2 * 2 * 16 * 2 * 2;
  const TempDir dir;
  const auto values = [&](const std::string& flags) {
    (void)run_tiny_on(1, kLesson06, "--quiet --layers 2 --micro-batch 2 --grad-accum 1 " + flags + " --json " + dir.path("r"));
    return read_report(dir.path("r")).values;
  };
  const ValueList own = values("--route-replay own --dtype bf16");
  ASSERT_EQ(own.size(), 2U);
  EXPECT_EQ(own[0], (std::pair<std::string, Value>{"compared-choices", kAll}));
  EXPECT_EQ(own[1].first, "other-choices");
  EXPECT_GE(std::get<std::int64_t>(own[1].second), 0);
  EXPECT_LT(std::get<std::int64_t>(own[1].second), kAll / 4);
  EXPECT_EQ(values("--dtype bf16"), ValueList{});
  EXPECT_EQ(values("--route-replay own --dtype bf16 --no-verify"), ValueList{});
}

// Whatever the mesh.
TEST(ExpertParallel, ClaimsOfReplicasHaveOneName) {
  if (!rows_are_counted()) GTEST_SKIP() << "sends are not counted";
  for (const char* mesh : {"--ep 1 --dp 2", "--ep 2"})
    expect_claims(passing_experts(2, mesh),
                  {"dp, sent in a step by all ranks: gradients", "dp, sent in all steps by all ranks, but for loss and norm"});
}

TEST(ExpertParallel, P53_CapacityDropsWhatIsBeyondIt) {
  expect_load(experts_equal_one_device(2, "--cp 2 --capacity-factor 1"), 2 * 32, false);
  const Report half = experts_equal_one_device(2, "--capacity-factor 0.5");
  expect_load(half, 2 * 2 * 32, false);
  // An expert takes ceil(0.5 x 2 x 32 / 8) = 4 of each micro-batch.
  for (const ExpertLoad& l : half.experts)
    for (const std::int64_t rows : l.rows) EXPECT_LE(rows, 4 * 4);
  const Report padded = experts_equal_one_device(2, "--capacity-factor 1 --pad-to-capacity");
  expect_claims_of_phases(padded, {"dispatch", "combine", "combine backward", "dispatch backward"});
  for (const ExpertLoad& l : padded.experts) EXPECT_EQ(l.computed, 4 * 8 * 8);  // of 4 micro-batches, 8 rows of each expert
}

TEST(ExpertParallel, TheOtherAxesEqualOneDevice) {
  expect_load(experts_equal_one_device(2, "--tp 2"), 2 * 32);
  expect_load(experts_equal_one_device(2, "--tp 2 --expert-tp"), 2 * 32);
  (void)experts_equal_one_device(2, "--tp 2 --seq 13 --micro-batch 1");  // rows that tp does not divide
  expect_load(experts_equal_one_device(2, "--pp 2 --schedule dualpipe"), 2 * 4 * 32);
  (void)experts_equal_one_device(4, "--model tiny-deepseek --ep 2 --tp 2 --sp --seq 13 --micro-batch 1 --strategy zero1");
  (void)experts_equal_one_device(4, "--ep 2 --cp 2 --aux-kind sequence --documents pack --recompute selective");
  const Report dualpipe = experts_equal_one_device(4, "--pp 2 --ep 2 --schedule dualpipe --grad-accum 1 --strategy zero1");
  expect_claims_of_phases(dualpipe, {"dispatch", "combine", "combine backward", "dispatch backward", "counts"});
  (void)experts_equal_one_device(1, "--model tiny-deepseek");
}

TEST(ExpertParallel, LowPrecision) {
  const Report report = passing_experts(2, "--dtype bf16 --strategy zero3");
  expect_claims(report, {"memory of rank 0: master", "memory of rank 0: gradient accumulation"});
  expect_load(report, 2 * 2 * 32);
  (void)passing_experts(2, "--dtype bf16 --tp 2 --sp --expert-tp --model tiny-deepseek");
  (void)passing_experts(2, "--dtype fp32 --route-replay own --steps 2");
}

// Every mistake that can be planted fails the check that shows it.
TEST(ExpertParallel, EverySabotageIsNoticed) {
  const std::string model =
      "--data " REF5D_SOURCE_DIR "/LICENSE --layers 2 --hidden 16 --heads 2 --kv-heads 1 --ffn 24 --seq 16";
  expect_sabotages_noticed(kLesson06,
                           {{"expert-gradients-times-ep", "gradients/model.layers.0.block_sparse_moe.experts.0.w1.weight"},
                            {"experts-left-out-of-norm", "grad norm/ranks that have another"},
                            {"rows-by-sender", "loss/step 1"},
                            {"router-unsummed", "gradients/model.layers.0.block_sparse_moe.gate.weight"},
                            {"aux-per-rank", "aux loss/step 1"},
                            {"drop-by-rank", "rows that were sent to experts, all ranks"},
                            {"wrong-renormalisation", "loss/step 1"},
                            {"own-load", "buffers/model.layers.*.mlp.gate.e_score_correction_bias"}},
                           model);
  // In layouts of more axes, and by the other ways.
  for (const char* flags : {"--dispatcher hierarchical --ranks-per-node 2 --sabotage rows-by-sender",
                            "--ep 2 --tp 2 --expert-tp --sp --sabotage router-unsummed",
                            "--ep 2 --strategy zero3 --dtype bf16 --sabotage experts-left-out-of-norm",
                            "--ep 2 --dp 4 --dispatcher allgather --sabotage own-load"})
    expect_one_error(run_tiny_on(4, kLesson06, "--quiet --layers 2 --grad-accum 1 " + std::string(flags)), 1,
                     {"check failed: "});
}

// Flags in whose way others stand, and layouts that cannot be: one line, and all ranks end.
TEST(ExpertParallel, BadUsageIsOneLine) {
  expect_refusals(
      kLesson06,
      {{1, "--dispatcher allgather", {"--dispatcher", "--ep 1", "several ranks along ep"}},
       {2, "--dp 2 --dispatcher alltoall", {"--dispatcher", "--ep 1"}},
       {1, "--dispatcher all", {"--dispatcher", "hierarchical"}},
       {1, "--expert-tp", {"--expert-tp", "--tp 1", "several ranks along tp"}},
       {1, "--sp", {"--sp", "--tp 1"}},
       {1, "--sp-keep gathered", {"--sp-keep", "--sp left out"}},
       {1, "--cp-kind ring", {"--cp-kind", "--cp 1"}},
       {1, "--cp-layout striped", {"--cp-layout", "--cp 1"}},
       {1, "--ulysses-size 2", {"--ulysses-size", "--cp-kind ring"}},
       {1, "--schedule 1f1b", {"--schedule", "--pp 1", "several ranks along pp"}},
       {1, "--micro-batches 4", {"--micro-batches", "--pp 1"}},
       {1, "--chunks 3", {"--chunks", "--pp 1"}},
       {2, "--layers 2 --pp 2 --chunks 3", {"--chunks", "--schedule 1f1b", "interleaved"}},
       {1, "--shard-size 2", {"--shard-size", "--strategy ddp", "hsdp"}},
       {1, "--aux-coef 0 --aux-kind sequence", {"--aux-kind", "--aux-coef 0"}},
       {1, "--model tiny", {"--model tiny has no experts", "tiny-mixtral or tiny-deepseek"}},
       {1, "--model tiny-gpt2 --kv-heads 2", {"tiny-gpt2"}},
       {4, "--experts 2 --top-k 1", {"--ep 4", "at least as many experts", "2"}},
       {1, "--experts 4 --top-k 5", {"--top-k 5", "4 experts"}},
       {1, "--top-k 0", {"--top-k 0"}},
       {1, "--groups 3", {"--experts 8", "--groups 3"}},
       {1, "--groups 4 --top-groups 5", {"--top-groups 5", "--groups 4"}},
       {1, "--groups 4 --top-groups 1 --top-k 4", {"--top-k 4", "2 experts", "--top-groups 1"}},
       {1, "--pad-to-capacity", {"--pad-to-capacity", "--capacity-factor"}},
       {2, "--capacity-factor 1 --pad-to-capacity --dispatcher allgather", {"--pad-to-capacity", "--dispatcher alltoall"}},
       {2,
        "--capacity-factor 1 --pad-to-capacity --dispatcher hierarchical",
        {"--pad-to-capacity", "--dispatcher hierarchical"}},
       {1, "--capacity-factor -1", {"--capacity-factor -1"}},
       {1, "--bias-speed 0.1", {"--bias-speed", "--correction-bias"}},
       {1, "--shared-experts 1", {"--shared-experts", "tiny-deepseek"}},
       {1, "--correction-bias", {"--correction-bias", "tiny-deepseek"}},
       {4, "--layers 4 --pp 2 --dp 2 --schedule dualpipe --strategy zero3", {"--strategy zero3", "dualpipe"}},
       {4, "--ep 3", {"--ep 3 does not divide the 4 data-parallel ranks"}},
       {4, "--ep 2 --dp 3", {"--dp 3 does not fit 4 ranks"}},
       {2, "--tp 2 --expert-tp --ffn 1", {"--tp 2 cannot cut experts of 1 column", "use --tp 1, or leave --expert-tp out\n"}},
       {2, "--tp 2 --sp --seq 1 --micro-batch 1", {"--sp cannot cut", "1 token over 2 ranks"}},
       {1, "--experiment number", {"did you mean numbers?"}}});
}

TEST(ExpertParallel, SabotagesThatCannotShowAreRefused) {
  expect_refusals(
      kLesson06,
      {{1, "--sabotage own-load --no-verify", {"--sabotage", "--no-verify"}},
       {1, "--sabotage own", {"--sabotage own", "own-load"}},
       {1, "--sabotage rows-by-sender", {"two ranks along ep", "mpiexec -n 2"}},
       {2, "--sabotage router-unsummed --tp 1", {"two ranks along tp"}},
       {2, "--sabotage aux-per-rank --ep 2", {"two ranks along cp"}},
       {2, "--sabotage expert-gradients-times-ep --strategy naive", {"does nothing", "--strategy naive"}},
       {2, "--sabotage experts-left-out-of-norm --clip 0", {"does nothing", "--clip"}},
       {2, "--sabotage rows-by-sender --dispatcher allgather", {"does nothing", "--dispatcher"}},
       {2, "--sabotage rows-by-sender --experts 2 --top-k 1", {"does nothing", "--ep"}},
       {2, "--sabotage rows-by-sender --dispatcher hierarchical --ranks-per-node 1", {"does nothing", "--ranks-per-node"}},
       {2, "--sabotage router-unsummed --top-k 1 --aux-coef 0", {"does nothing", "--aux-coef"}},
       {2, "--sabotage aux-per-rank --aux-coef 0", {"does nothing", "--aux-coef"}},
       {2, "--sabotage drop-by-rank --capacity-factor 2", {"does nothing", "--capacity-factor"}},
       {2, "--sabotage drop-by-rank --top-k 8", {"does nothing", "--top-k"}},
       {2, "--sabotage wrong-renormalisation --init-std 1e-8", {"does nothing", "--init-std"}},
       {2, "--sabotage wrong-renormalisation --top-k 8", {"does nothing", "--top-k"}},
       {2, "--sabotage own-load --model tiny-mixtral", {"does nothing", "--model"}},
       {2, "--sabotage own-load --bias-speed 0", {"does nothing", "--bias-speed"}},
       {2, "--sabotage own-load --top-k 8 --groups 1 --top-groups 1", {"does nothing", "--top-k"}}});
}

// A model with experts is this lesson's: the others say so, or do not know it.
TEST(ExpertParallel, OtherLessonsRefuseExperts) {
  for (const char* program : {"01_grad_accum", "02_ddp_zero", "03_tensor_parallel", "04_seq_context_parallel", "05_pipeline"})
    expect_refusals(program, {{1, "--model tiny-mixtral", {"--model tiny-mixtral", "06_expert_parallel"}}});
  expect_refusals("05_pipeline", {{1, "--model tiny-deepseek", {"06_expert_parallel"}}, {1, "--experts 8", {"--experts"}}});
}

}  // namespace expert_parallel_program_test
}  // namespace ref5d::testing
