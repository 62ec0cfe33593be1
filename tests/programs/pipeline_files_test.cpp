// What the program 05_pipeline writes: dumps, checkpoints, samples and traces.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/support/io_testing.h"
#include "tests/support/program_testing.h"

namespace ref5d::testing {
namespace pipeline_files_test {

const std::string kPipelineProgram = "05_pipeline";

// A dump holds global tensors, whichever rank made them and in whatever order: those of one device.
TEST(Pipeline, DumpsAreThoseOfASingleDevice) {
  const std::string model = "--layers 4 --heads 4 --kv-heads 2 --seq 13 --documents pack --dtype fp64 --no-verify --quiet ";
  for (const auto& [ranks, layout] :
       {std::pair{2, "--schedule interleaved --micro-batches 3 --grad-accum 2 --micro-batch 1"},
        {2, "--schedule dualpipe --micro-batches 6 --grad-accum 1 --micro-batch 1 --tied"},
        {4, "--pp 2 --tp 2 --sp --schedule zb-v --micro-batches 3 --grad-accum 1 --micro-batch 2"},
        {4, "--pp 2 --dp 2 --strategy zero2 --micro-batches 3 --grad-accum 1 --micro-batch 1"}}) {
    SCOPED_TRACE(layout);
    const TempDir dir;
    const std::string flags = model + "--dump-level full --dump ",
                      tied = std::string(layout).ends_with("--tied") ? " --tied" : "";
    const Outcome cut = run_tiny_on(ranks, kPipelineProgram, flags + dir.path("cut") + " " + layout);
    ASSERT_EQ(cut.exit_status, 0) << cut.description();
    const Outcome whole = run_tiny(flags + dir.path("whole") + " --grad-accum 1 --micro-batch 6" + tied);
    ASSERT_EQ(whole.exit_status, 0) << whole.description();
    const Outcome compared = run_binary("compare", {dir.path("cut"), dir.path("whole"), "--tolerance", "1e-11"});
    EXPECT_EQ(compared.exit_status, 0) << compared.out << compared.err;
    EXPECT_EQ(read_tensors(dir.path("cut")).size(), read_tensors(dir.path("whole")).size());
  }
}

// Continued bit by bit by the same pipeline; by another, and by one device, but for rounding.
TEST(Pipeline, P14_ResumesOnOtherPipelines) {
  const TempDir dir;
  const std::string flags = "--no-verify --quiet --layers 4 --micro-batch 1 --tied --dtype fp64 --dump " + dir.path("d") + " ";
  const auto dump_of = [&](int ranks, const std::string& more) {
    const Outcome run = run_tiny_on(ranks, kPipelineProgram, flags + more);
    EXPECT_EQ(run.exit_status, 0) << more << run.description();
    return run.exit_status == 0 ? with_prefix(read_tensors(dir.path("d")), "final/") : NamedTensors();
  };
  const std::string layout = "--pp 2 --dp 2 --strategy zero1 --schedule zb-h1 --micro-batches 4 --grad-accum 1 ";
  const NamedTensors whole = dump_of(4, layout + "--steps 4");
  (void)dump_of(4, layout + "--steps 2 --save " + dir.path("save"));
  expect_identical(dump_of(4, layout + "--steps 2 --resume " + dir.path("save")), whole);
  for (const auto& [ranks, other] : {std::pair{4, "--micro-batches 8 --grad-accum 1"},
                                     {2, "--schedule dualpipe --micro-batches 4 --grad-accum 2"},
                                     {1, "--micro-batches 8 --grad-accum 1"}}) {
    for (const auto& [name, values] : dump_of(ranks, std::string(other) + " --steps 2 --resume " + dir.path("save"))) {
      const std::vector<double> a = values.to_doubles(), b = whole.at(name).to_doubles();
      double most = 0;
      for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
      EXPECT_LE(most, 1e-12) << name << ", " << other;
    }
  }
}

// What stages say together is what one device does.
TEST(Pipeline, SamplesAreThoseOfASingleDevice) {
  const auto sample = [&](int ranks, const std::string& more) {
    const Outcome run =
        run_tiny_on(ranks, kPipelineProgram, "--layers 4 --dtype fp64 --no-verify --grad-accum 1 --sample 20 " + more);
    EXPECT_EQ(run.exit_status, 0) << run.description();
    return run.out.substr(std::min(run.out.find("A sample, "), run.out.size()));
  };
  const std::string whole = sample(1, "--micro-batches 4");
  EXPECT_GT(whole.size(), 20u);
  EXPECT_EQ(sample(2, "--micro-batches 4"), whole);
  EXPECT_EQ(sample(2, "--micro-batches 4 --schedule zb-v"), whole);
}

// A trace has what each cell of the schedule took, under its name and in its order.
TEST(Pipeline, TracesShowTheCells) {
  const TempDir dir;
  const Outcome run = run_tiny_on(2, kPipelineProgram,
                                  "--layers 2 --schedule zb-h1 --micro-batches 3 --grad-accum 1 --no-verify --quiet --steps 1 "
                                  "--trace " +
                                      dir.path("t.json"));
  ASSERT_EQ(run.exit_status, 0) << run.description();
  const char* const cells[] = {"0F0 0F1 0I0 0W0 0F2 0I1 0W1 0I2 0W2", "1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1W2"};
  for (int rank : {0, 1}) {
    std::vector<std::string> names;
    const auto streams = events_by_stream(dir.path("t.json"), rank);
    for (const TraceEvent& e : streams.at("pipeline")) names.push_back(e.name);
    EXPECT_EQ(names, words(cells[rank])) << rank;
  }
}

}  // namespace pipeline_files_test
}  // namespace ref5d::testing
