// What the program 06_expert_parallel reads and writes: dumps, choices to follow, checkpoints and traces.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "common/device/device.h"
#include "common/io/file.h"
#include "common/io/safetensors.h"
#include "tests/support/io_testing.h"
#include "tests/support/program_testing.h"

namespace ref5d::testing {
namespace expert_parallel_files_test {

const std::string kExpertProgram = "06_expert_parallel";

Outcome run_experts(int ranks, const std::string& flags) {
  Outcome run = run_tiny_on(ranks, kExpertProgram, "--quiet --layers 2 " + flags);
  EXPECT_EQ(run.exit_status, 0) << flags << " on " << ranks << ": " << run.description();
  return run;
}

// A dump holds global tensors in the batch's order, whatever the layout: also those of routers, which get some rows along tp,
// or all of them and a part of their gradient.
TEST(ExpertParallel, DumpsAreThoseOfASingleDevice) {
  const struct {
    const char* model;
    std::vector<std::pair<int, const char*>> layouts;
  } kCases[] = {{"--model tiny-mixtral ",
                 {{2, "--ep 2 --grad-accum 1"},
                  {2, "--tp 2 --grad-accum 2"},
                  {2, "--tp 2 --expert-tp --grad-accum 2"},
                  {4, "--pp 2 --tp 2 --grad-accum 1 --micro-batches 2"}}},
                {"--model tiny-deepseek --z-coef 0.01 ",
                 {{2, "--tp 2 --sp --expert-tp --grad-accum 2"},
                  {4, "--cp 2 --tp 2 --grad-accum 2"},
                  {4, "--ep 2 --tp 2 --sp --dispatcher allgather --grad-accum 1"}}}};
  const TempDir dir;
  const std::string whole = dir.path("whole"), cut = dir.path("cut");
  for (const auto& [model, layouts] : kCases) {
    const std::string flags =
        std::string(model) + "--dtype fp64 --no-verify --seq 13 --steps 1 --micro-batch 2 --dump-level full ";
    (void)run_experts(1, flags + "--grad-accum 2 --dump " + whole);
    const NamedTensors expected = read_tensors(whole);
    for (const char* name : {"sub/0/mlp_in", "sub/1/mlp_out", "sub/1/router_scores", "sub_grad/0/mlp_in"})
      EXPECT_TRUE(expected.contains(name)) << name;
    EXPECT_EQ(expected.at("sub/1/experts").shape, (std::vector<std::int64_t>{4, 13, 2}));
    EXPECT_EQ(expected.at("sub_grad/0/router_logits").shape, (std::vector<std::int64_t>{4, 13, 8}));
    for (const auto& [ranks, layout] : layouts) {
      SCOPED_TRACE(std::string(model) + layout);
      (void)run_experts(ranks, flags + layout + " --dump " + cut);
      const Outcome compared = run_binary("compare", {cut, whole, "--tolerance", "1e-11"});
      EXPECT_EQ(compared.exit_status, 0) << compared.out << compared.err;
      EXPECT_EQ(read_tensors(cut).size(), expected.size());
    }
  }
}

// The choices of a dump, followed by other layouts, make the same losses. Without them nothing changes in fp64; with others'
// they do.
TEST(ExpertParallel, ADumpsChoicesAreFollowed) {
  const TempDir dir;
  const std::string flags = "--dtype fp64 --micro-batch 2 --steps 1 ", file = dir.path("routes");
  const auto report_of = [&](int ranks, const std::string& more) {
    (void)run_experts(ranks, flags + more + " --json " + dir.path("r.json"));
    return read_report(dir.path("r.json"));
  };
  const Report given = report_of(2, "--grad-accum 1 --dump-level full --dump " + file);
  ASSERT_EQ(given.loss.size(), 1U);
  const std::string replay = " --route-replay " + file;
  for (const auto& [ranks, layout] : {std::pair{1, "--grad-accum 2"}, {2, "--grad-accum 1"}, {2, "--tp 2"}, {2, "--cp 2"}}) {
    const Report r = report_of(ranks, layout + replay);
    EXPECT_EQ(failing(r), std::vector<std::string>{}) << layout;
    ASSERT_EQ(r.loss.size(), 1U);
    EXPECT_NEAR(r.loss[0], given.loss[0], 1e-11) << layout;
    EXPECT_NEAR(r.aux_loss[0], given.aux_loss[0], 1e-11) << layout;
    ASSERT_EQ(r.experts.size(), 2U);
    for (std::size_t i = 0; i < 2; ++i) EXPECT_EQ(r.experts[i].choices, given.experts[i].choices) << layout;
  }
  // Everybody's first choice is expert 3, and the second expert 0.
  NamedTensors tensors = read_tensors(file);
  for (const char* name : {"sub/0/experts", "sub/1/experts"}) {
    HostTensor& t = tensors.at(name);
    std::vector<double> values(static_cast<std::size_t>(t.numel()));
    for (std::size_t i = 0; i < values.size(); i += 2) values[i] = 3;
    t = HostTensor::from_doubles(values, t.shape, t.dtype);
  }
  write_safetensors(file, tensors, {});
  const Report forced = report_of(2, "--grad-accum 1" + replay);
  EXPECT_EQ(failing(forced), std::vector<std::string>{});
  EXPECT_GT(std::abs(forced.loss[0] - given.loss[0]), 1e-9);
  for (const ExpertLoad& l : forced.experts) EXPECT_EQ(l.choices, (std::vector<std::int64_t>{64, 0, 0, 64, 0, 0, 0, 0}));
}

// Files that hold no choices, too few, or others'.
TEST(ExpertParallel, BadChoicesAreOneLine) {
  const TempDir dir;
  const std::string basic = dir.path("basic"), full = dir.path("full"), one = " --micro-batch 1 --grad-accum 1 ";
  for (const std::string& more : {"--dump " + basic, "--dump-level full --dump " + full}) {
    const Outcome run = run_tiny_on(1, kExpertProgram, "--no-verify --quiet --steps 1 --micro-batch 2 --grad-accum 1 " + more);
    ASSERT_EQ(run.exit_status, 0) << run.description();
  }
  const auto expect_refused = [&](int ranks, const std::string& flags, const std::vector<std::string>& parts) {
    SCOPED_TRACE(flags);
    const Outcome run = run_tiny_on(ranks, kExpertProgram, "--quiet" + one + "--route-replay " + flags);
    expect_one_error(run, 2, parts);
    EXPECT_EQ(run.out, "");
    EXPECT_LT(run.seconds, 10);
  };
  expect_refused(2, dir.path("missing"), {dir.path("missing"), "No such file"});
  expect_refused(1, REF5D_SOURCE_DIR "/LICENSE", {"LICENSE is not a safetensors file"});
  expect_refused(1, basic, {"no tensor sub/0/experts", "--dump-level full"});
  expect_refused(2, full, {"sub/0/experts has shape [2, 16, 2]", "[at least 4, 16, 2]"});
  expect_refused(1, full + " --seq 8", {"[2, 16, 2]", "[at least 2, 8, 2]"});
  expect_refused(1, full + " --top-k 3", {"[2, 16, 2]", "[at least 2, 16, 3]"});
  expect_refused(1, full + " --layers 2", {"no tensor sub/1/experts"});
  expect_refused(1, full + " --experts 4", {"2 different ones from 0 to 3"});
}

// A dump of a run's first step has the choices of its samples, which are not the first ones where it continues another run.
TEST(ExpertParallel, ChoicesAreFollowedAfterResuming) {
  const TempDir dir;
  const std::string flags = "--dtype fp64 --micro-batch 2 --grad-accum 1 --ep 2 --steps 1 ";
  (void)run_experts(2, flags + "--no-verify --save " + dir.path("save"));
  const std::string resumed = flags + "--resume " + dir.path("save") + " --json " + dir.path("r.json");
  (void)run_experts(2, resumed + " --dump-level full --dump " + dir.path("routes"));
  const Report given = read_report(dir.path("r.json"));
  (void)run_experts(2, resumed + " --route-replay " + dir.path("routes"));
  const Report replayed = read_report(dir.path("r.json"));
  EXPECT_EQ(failing(replayed), std::vector<std::string>{});
  EXPECT_EQ(replayed.loss, given.loss);
  ASSERT_EQ(replayed.experts.size(), given.experts.size());
  for (std::size_t i = 0; i < given.experts.size(); ++i) EXPECT_EQ(replayed.experts[i].choices, given.experts[i].choices);
}

// What neither names nor shapes of weights tell.
TEST(ExpertParallel, ResumingWithOtherRoutersIsRefused) {
  const TempDir dir;
  const std::string flags = "--model tiny-deepseek --no-verify --steps 1 --micro-batch 1 --grad-accum 1 ";
  (void)run_experts(1, flags + "--save " + dir.path("save"));
  for (const auto& [flag, key] :
       {std::pair{"--top-k 1", "top_k"}, {"--score softmax", "score"}, {"--groups 1 --top-groups 1", "groups"}})
    expect_one_error(run_tiny_on(1, kExpertProgram, "--quiet --layers 2 " + flags + flag + " --resume " + dir.path("save")), 2,
                     {"state.json", key});
}

// Continued bit by bit by the same mesh; by others but for rounding. The correction bias, which no gradient moves, goes along.
TEST(ExpertParallel, P14_ResumesOnOtherMeshes) {
  const TempDir dir;
  const std::string dump = dir.path("d"), save = dir.path("save");
  const auto final_of = [&](int ranks, const std::string& more) {
    const Outcome run =
        run_experts(ranks, "--model tiny-deepseek --dtype fp64 --micro-batch 1 --no-verify --dump " + dump + " " + more);
    return run.exit_status == 0 ? with_prefix(read_tensors(dump), "final/") : NamedTensors();
  };
  const std::string layout = "--ep 2 --grad-accum 4 ", bias = "model.layers.1.mlp.gate.e_score_correction_bias";
  const NamedTensors whole = final_of(2, layout + "--steps 4");
  const NamedTensors half = final_of(2, layout + "--steps 2 --save " + save);
  ASSERT_TRUE(whole.contains(bias) && half.contains(bias));
  EXPECT_FALSE(whole.at(bias).data == half.at(bias).data) << "it has not moved";
  expect_identical(final_of(2, layout + "--steps 2 --resume " + save), whole);
  for (const auto& [ranks, other] : {std::pair{1, "--ep 1 --grad-accum 8"},
                                     {4, "--ep 2 --tp 2 --grad-accum 4"},
                                     {4, "--ep 4 --dispatcher allgather --grad-accum 2 --strategy zero3"},
                                     {4, "--pp 2 --ep 2 --grad-accum 1 --schedule dualpipe"}}) {
    const NamedTensors resumed = final_of(ranks, std::string(other) + " --steps 2 --resume " + save);
    EXPECT_EQ(resumed.size(), whole.size()) << other;
    EXPECT_TRUE(resumed.at(bias).data == whole.at(bias).data) << other;
    for (const auto& [name, values] : resumed) {
      const std::vector<double> a = values.to_doubles(), b = whole.at(name).to_doubles();
      double most = 0;
      for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
      EXPECT_LE(most, 1e-12) << name << ", " << other;
    }
  }
}

// Two runs of one layout, and with what travels beside what: the same bits in every file.
TEST(ExpertParallel, P55_TwoRunsAreTheSameBits) {
  const struct {
    int ranks;
    std::string layout;
    std::vector<const char*> again;
  } kCases[] = {{2, "--model tiny-deepseek --dtype bf16 --capacity-factor 1 ", {"", "--no-overlap"}},
                {4, "--dispatcher hierarchical --ranks-per-node 2 --strategy zero3 ", {""}}};
  for (const auto& [ranks, layout, again] : kCases) {
    SCOPED_TRACE(layout);
    const auto bits_of = [ranks = ranks, layout = layout](const std::string& overlap) {
      const TempDir dir;
      (void)run_experts(ranks, layout + overlap + " --no-verify --dump " + dir.path("d") + " --save " + dir.path("s"));
      return read_file(dir.path("d")) + read_file(dir.path("s/step_2/model.safetensors")) +
             read_file(dir.path("s/step_2/optimizer.safetensors"));
    };
    const std::string first = bits_of("");
    EXPECT_GT(first.size(), 100'000U);
    for (const char* flag : again) EXPECT_TRUE(bits_of(flag) == first) << flag;
  }
}

bool beside(const TraceEvent& a, const TraceEvent& b) {
  return std::max(a.begin, b.begin) + 0.01 < std::min(a.end, b.end);  // times are written to a thousandth of a microsecond
}

// What a layer does with tokens before it sends them, and the attention of another.
bool is_before_dispatch(const std::string& kernel) {
  const auto is = [&](const char* name) { return kernel.find(name) != std::string::npos; };
  return is("attention_") || is("rmsnorm_") || is("rope") || is("router_softmax");
}

// Messages to experts and back, of all ranks, that were under way while the rank computed such a kernel.
std::ptrdiff_t messages_beside_other_tokens(const std::string& trace, int ranks) {
  std::ptrdiff_t count = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto events = events_by_stream(trace, rank);
    const auto &kernels = events.at("compute"), &messages = events.at("ep");
    count += std::count_if(messages.begin(), messages.end(), [&](const TraceEvent& m) {
      return m.name.starts_with("all_to_all over ep") && std::any_of(kernels.begin(), kernels.end(), [&](const TraceEvent& k) {
               return is_before_dispatch(k.name) && beside(k, m);
             });
    });
  }
  return count;
}

TEST(ExpertParallel, TracesShowSharedExpertsOnAStreamOfTheirOwn) {
  const TempDir dir;
  for (const bool overlap : {true, false}) {
    (void)run_experts(
        2, "--model tiny-deepseek --no-verify --steps 1 --trace " + dir.path("t") + (overlap ? "" : " --no-overlap"));
    for (int rank : {0, 1}) {
      const auto events = events_by_stream(dir.path("t"), rank);
      ASSERT_TRUE(events.contains("ep") && events.contains("compute"));
      // Two layers and two micro-batches: counts and rows there, rows back, and both backward.
      EXPECT_EQ(std::count_if(events.at("ep").begin(), events.at("ep").end(),
                              [](const TraceEvent& e) { return e.name.starts_with("all_to_all over ep"); }),
                2 * 2 * 5);
      ASSERT_EQ(events.contains("shared experts"), overlap);
      if (!overlap) continue;
      const auto& shared = events.at("shared experts");
      EXPECT_EQ(
          std::count_if(shared.begin(), shared.end(), [](const TraceEvent& e) { return e.name.starts_with("swiglu_forward"); }),
          2 * 2);
    }
  }
}

TEST(ExpertParallel, TimelinesInVirtualTime) {
  if (Device::mode() == "cuda") GTEST_SKIP() << "times are of MODE=cpu";
  const TempDir dir;
  (void)run_experts(2, "--no-verify --steps 1 --experiment overlap --virtual-trace " + dir.path("v"));
  EXPECT_TRUE(read_file(dir.path("v.meanwhile.json")).find("shared experts") != std::string::npos);
  EXPECT_TRUE(read_file(dir.path("v.after.json")).find("shared experts") == std::string::npos);
  for (const auto& [flags, part] : {std::pair{" --experiment overlap --virtual-trace /nowhere/v", "/nowhere"},
                                    {" --virtual-trace v", "--experiment overlap"}})
    expect_one_error(run_tiny_on(2, kExpertProgram, std::string("--quiet --steps 1") + flags), 2, {"--virtual-trace", part});
}

// DualPipe computes for one micro-batch while the tokens of another travel. Where a rank has one at a time, nothing is left to
// do then but a layer's own weight gradients.
TEST(ExpertParallel, DualPipeComputesBesideMessages) {
  if (Device::mode() == "cuda") GTEST_SKIP() << "a GPU may take longer to begin a kernel than to run it";
  const TempDir dir;
  for (const std::string schedule : {"dualpipe", "1f1b"}) {
    (void)run_experts(4, "--pp 2 --dp 2 --ep 2 --micro-batches 8 --grad-accum 1 --no-verify --steps 1 --schedule " + schedule +
                             " --trace " + dir.path("t"));
    const std::ptrdiff_t beside_others = messages_beside_other_tokens(dir.path("t"), 4);
    EXPECT_EQ(beside_others > 0, schedule == "dualpipe") << beside_others << " messages, " << schedule;
  }
}

}  // namespace expert_parallel_files_test
}  // namespace ref5d::testing
