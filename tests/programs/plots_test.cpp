// common/tools/plots, where there is a python3 with matplotlib: pictures are made, and what it cannot read takes one line.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "common/io/file.h"
#include "tests/support/io_testing.h"
#include "tests/support/program_testing.h"

namespace ref5d::testing {
namespace {

class Plots : public ::testing::Test {
 protected:
  // A report of two ranks that hold and send different amounts, and a trace of lesson 01's program.
  void SetUp() override {
    if (std::system("python3 -c 'import matplotlib' >/dev/null 2>&1") != 0) GTEST_SKIP() << "python3 has no matplotlib";
    report_ = dir_.put("report.json", R"({"program": "p", "mesh": {"edp": 2},
      "config": {"model": "tiny", "dtype": "bf16", "strategy": "zero3", "parameters": 1000, "steps": 2},
      "memory": [{"rank": 0, "category": "parameters", "peak_bytes": 2000},
                 {"rank": 1, "category": "parameters", "peak_bytes": 3000},
                 {"rank": 1, "category": "a new category", "peak_bytes": 100}],
      "traffic": [{"axis": "dp/outer", "phase": "gradients", "wire_bytes": 4000, "total_wire_bytes": 9000},
                  {"axis": "dp", "phase": "forward", "wire_bytes": 4000, "total_wire_bytes": 8000}]})");
    trace_ = dir_.path("trace.json");
  }
  void train() const {
    const Outcome run = run_tiny("--no-verify --quiet --trace " + trace_);
    ASSERT_EQ(run.exit_status, 0) << run.description();
  }
  [[nodiscard]] Outcome plot(const std::string& arguments, const RunOptions& options = {}) const {
    return run_binary("../../common/tools/plots", words(arguments), options);
  }
  // Expects a picture that begins as files of its kind do, and its name on stdout.
  void expect_picture(const std::string& picture, const std::string& out, const std::string& arguments,
                      const std::string& beginning) const {
    const Outcome run = plot(picture + " " + dir_.path(out) + " " + arguments);
    EXPECT_EQ(run.exit_status, 0) << run.description();
    EXPECT_EQ(run.err, "");
    EXPECT_EQ(run.out, dir_.path(out) + "\n");
    if (!std::filesystem::exists(dir_.path(out))) return;
    const std::string content = read_file(dir_.path(out));
    EXPECT_TRUE(content.starts_with(beginning)) << content.substr(0, 20);
    EXPECT_GT(content.size(), 5000u);
  }
  void expect_refused(const std::string& arguments, const std::vector<std::string>& parts) const {
    SCOPED_TRACE(arguments);
    expect_one_error(plot(arguments), 2, parts);
    EXPECT_FALSE(std::filesystem::exists(dir_.path("o.png")));
  }

  TempDir dir_;
  std::string report_, trace_;
};

TEST_F(Plots, PicturesAreMade) {
  train();
  const std::string png = "\x89PNG\r\n\x1a\n";
  expect_picture("memory", "memory.png", report_ + " again=" + report_, png);
  expect_picture("traffic", "traffic.png", report_, png);
  expect_picture("timeline", "timeline.png", trace_ + " --step 2", png);
  expect_picture("timeline", "backward.svg", trace_ + " --ranks 0 --backward", "<?xml");
}

// The bytes between nodes, which are known of all ranks together, stand at the mean's bar.
TEST_F(Plots, TrafficOfExperts) {
  const auto report = [&](const char* file, const std::string& between) {
    return dir_.put(file, R"({"program": "p", "mesh": {"ep": 2},
      "config": {"model": "m", "dtype": "fp32", "parameters": 1000, "steps": 2},
      "memory": [{"rank": 0, "category": "parameters", "peak_bytes": 2000}],
      "traffic": [{"axis": "ep", "phase": "dispatch", "wire_bytes": 4000, "total_wire_bytes": 12000)" +
                              between + "}]}");
  };
  expect_picture("traffic", "far.svg", report("far.json", R"(, "total_between_nodes_bytes": 8000)"), "<?xml");
  const std::string far = read_file(dir_.path("far.svg")), note = "1.95 KiB between nodes";
  EXPECT_NE(far.find(note), std::string::npos);
  EXPECT_EQ(far.find(note), far.rfind(note));
  expect_picture("traffic", "near.svg", report("near.json", ""), "<?xml");
  EXPECT_EQ(read_file(dir_.path("near.svg")).find("between nodes"), std::string::npos);
  const std::string script =
      "import sys; sys.dont_write_bytecode = True; sys.path.insert(0, '" REF5D_SOURCE_DIR
      "/common/tools'); from plotting import bars, style; c = [style.COLORS[p] for p in bars.TRAFFIC_ORDER if p != 'norm']; "
      "sys.exit(len(set(c)) < len(c))";
  EXPECT_EQ(std::system(("python3 -c \"" + script + "\"").c_str()), 0) << "two phases have one colour";
}

TEST_F(Plots, SquaresOfARing) {
  const std::string squares = dir_.put("s.csv", "query,key,rank,hop\n0,0,0,0\n1,0,1,1\n1,1,1,0\n");
  expect_picture("squares", "squares.png", "two=" + squares + " " + squares, "\x89PNG\r\n\x1a\n");
  const std::string out = "squares " + dir_.path("o.png") + " ";
  expect_refused(out + report_, {"report.json", "is not a file of squares"});
  expect_refused(out + dir_.put("short.csv", "query,key,rank,hop\n0,0,0\n"), {"short.csv", "four numbers"});
  expect_refused(out + dir_.put("none.csv", "query,key,rank,hop\n"), {"none.csv", "is not a file of squares"});
  expect_refused(out + dir_.put("cut.csv", "query,key,rank,hop\n0,0,0,0\n1,0,1,1\n"), {"cut.csv", "some pairs are missing"});
  expect_refused(out + dir_.put("hops.csv", "query,key,rank,hop\n0,0,0,5\n"), {"hops.csv", "more hops than ranks"});
  expect_refused(out + dir_.put("huge.csv", "query,key,rank,hop\n0,0,99999999999999999999,0\n"), {"huge.csv", "4096"});
  expect_refused(out + dir_.put("late.csv", "query,key,rank,hop\n0,7,0,0\n"), {"late.csv", "not visible"});
  expect_refused(out + dir_.put("empty.csv", ""), {"empty.csv", "another first line"});
  std::string many = "query,key,rank,hop\n";
  for (int q = 0; q < 65; ++q)
    for (int k = 0; k <= q; ++k) many += std::to_string(q) + "," + std::to_string(k) + ",0,0\n";
  expect_refused(out + dir_.put("long.csv", many), {"up to 64 tokens"});
}

// How tokens were shared out over experts: a layer or the mean of all, in every step or some, of up to six reports.
TEST_F(Plots, LoadOfExperts) {
  const auto row = [](int step, int layer, const std::string& choices, const std::string& imbalance) {
    return R"({"step":)" + std::to_string(step) + R"(,"layer":)" + std::to_string(layer) + R"(,"choices":[)" + choices +
           R"(],"imbalance":)" + imbalance + "}";
  };
  const auto report = [&](const char* file, const std::string& rows) {
    return dir_.put(file, R"({"program":"p","experts":[)" + rows + "]}");
  };
  const std::string two = row(0, 0, "3,1", "1.5") + "," + row(0, 1, "4,0", "2");
  const std::string good = report("good.json", two + "," + row(9, 0, "2,2", "1") + "," + row(9, 1, "1,3", "1.5"));
  const std::string one = report("one.json", row(0, 0, "1,1,1", "1")), png = "\x89PNG\r\n\x1a\n";
  expect_picture("load", "load.png", good, png);
  expect_picture("load", "layer.svg", "--layer 1 a=" + good + " " + good, "<?xml");
  expect_picture("load", "six.png", one + " a=" + good + " " + good + " " + good + " " + good + " " + good, png);
  // Of step 10 each layer's choices over its even share, and their mean.
  const std::string script =
      "import sys; sys.dont_write_bytecode = True; sys.path.insert(0, '" REF5D_SOURCE_DIR
      "/common/tools'); from plotting import inputs, load; r = inputs.read_loads([sys.argv[1]])[0]; "
      "p = [load.panel_of(r, i, '') for i in (0, 1, None)]; "
      "sys.exit([(x.steps, [e[1] for e in x.shares], x.imbalance) for x in p] != "
      "[([1, 10], [1, 1], [1.5, 1]), ([1, 10], [.5, 1.5], [2, 1.5]), ([1, 10], [.75, 1.25], [1.75, 1.25])])";
  EXPECT_EQ(std::system(("python3 -c \"" + script + "\" " + good).c_str()), 0);

  const std::string out = "load " + dir_.path("o.png") + " ";
  expect_refused(out + report_, {"report.json", "no load of experts", "lesson 06"});
  expect_refused(out + report("dense.json", ""), {"dense.json", "no load of experts"});
  expect_refused(out + dir_.put("array.json", "[1]"), {"array.json", "is not a report", "--json"});
  expect_refused(out + dir_.put("trace.json", R"({"traceEvents":[]})"), {"trace.json", "is not a report"});
  expect_refused(out + dir_.put("word.json", R"({"program":"p","experts":"many"})"), {"word.json", "no list of experts"});
  expect_refused(out + dir_.put("row.json", R"({"program":"p","experts":[{"step":0}]})"), {"row.json", "no 'layer' in it"});
  expect_refused(out + report("cut.json", two + "," + row(1, 0, "3,1", "1.5")), {"cut.json", "missing or twice"});
  expect_refused(out + report("twice.json", two + "," + two), {"twice.json", "missing or twice"});
  expect_refused(out + report("sizes.json", row(0, 0, "3,1", "1.5") + "," + row(1, 0, "1,1,1", "1")), {"different numbers"});
  expect_refused(out + report("nobody.json", row(0, 0, "0,0", "1")), {"nobody.json", "no token's choices"});
  expect_refused(out + report("nan.json", row(0, 0, "3,1", R"("nan")")), {"nan.json", "imbalance"});
  expect_refused(out + good + " --layer 2", {"--layer 2", "good has layers 0, 1"});
  expect_refused(out + good + " --layer x", {"--layer", "invalid int value"});
  expect_refused(out + one + " " + good + " --layer 1", {"one has only layer 0"});
  std::string seven;
  for (int i = 0; i < 7; ++i) seven += " " + good;
  expect_refused(out + seven, {"7 reports", "space for 6"});
}

// Messages of several sizes have no size of their own, and hops are drawn one by one.
// Cells of a pipeline as boxes: every pass, F&B, and what is no cell.
TEST_F(Plots, APipelinesCells) {
  const auto trace = [&](const char* file, const std::string& other) {
    std::string events;
    for (int rank = 0; rank < 2; ++rank) {
      const std::string pid = R"("pid":)" + std::to_string(rank) + R"(,"tid":1,)";
      events += "{" + pid + R"("ph":"M","name":"thread_name","args":{"name":"pipeline"}},)";
      double at = 0;
      for (const std::string& cell : rank == 0 ? std::vector<std::string>{"0F0", "1F0", "(0F1;1B0)OVERLAP_F_B", "0I0", "0W0"}
                                               : std::vector<std::string>{"0F2", other})
        events += "{" + pid + R"("ph":"X","name":")" + cell + R"(","ts":)" + std::to_string(at++) + R"(,"dur":1},)";
    }
    events.pop_back();
    return dir_.put(file, R"({"traceEvents":[)" + events + "]}");
  };
  const std::string good = trace("good.json", "0B2");
  expect_picture("pipeline", "cells.png", "two=" + good + " " + good, "\x89PNG\r\n\x1a\n");
  const std::string out = "pipeline " + dir_.path("o.png") + " ";
  expect_refused(out + trace("other.json", "send"), {"'send' of rank 1 is no cell of a schedule", "2F0"});
  expect_refused(out + good + " --step 2", {"--step 2", "has only step 1"});
}

TEST_F(Plots, MessagesAndHopsAreBlocks) {
  const std::string script = "import sys; sys.dont_write_bytecode = True; sys.path.insert(0, '" REF5D_SOURCE_DIR
                             "/common/tools'); from plotting import timeline; from plotting.inputs import Span; "
                             "s = [Span(0, 'cp', 'p2p over cp/outer (2 sends, 2 receives)', 0, 5), "
                             "Span(0, 'cp', 'keys of hop 2', 5, 9), Span(0, 'compute', 'attention_forward of hop 1', 0, 4), "
                             "Span(0, 'compute', 'attention_forward of hop 2', 4, 9)]; "
                             "c = timeline.classify(s); b = timeline.blocks_of(c, 'cp', 0, 9) + "
                             "timeline.blocks_of(c, 'compute', 0, 9); "
                             "sys.exit([(x.category, x.labels[0]) for x in b] != [('communication', 'p2p'), "
                             "('communication', 'hop 2'), ('forward', 'hop 1'), ('forward', 'hop 2')])";
  EXPECT_EQ(std::system(("python3 -c \"" + script + "\"").c_str()), 0);
}

// Two exchanges with a kernel between them are one sum, and are labelled so.
TEST_F(Plots, AnAllReduceIsOneBlock) {
  const auto span = [](const std::string& name, int tid, int begin, int duration) {
    return R"(, {"ph": "X", "name": ")" + name + R"(", "pid": 0, "tid": )" + std::to_string(tid) + R"(, "ts": )" +
           std::to_string(begin) + R"(, "dur": )" + std::to_string(duration) + "}";
  };
  const std::string sum = "all_reduce over tp (1024 x fp32)";
  const std::string events = R"([{"ph": "M", "name": "thread_name", "pid": 0, "tid": 1, "args": {"name": "compute"}},
      {"ph": "M", "name": "thread_name", "pid": 0, "tid": 2, "args": {"name": "tp"}})" +
                             span("rmsnorm_forward", 1, 0, 10) + span(sum, 2, 10, 40) + span("reduce_in_rank_order", 2, 50, 5) +
                             span(sum, 2, 55, 40) + span(sum, 2, 95, 40) + "]";
  const auto blocks = [&] {
    const std::string script = "import sys; sys.dont_write_bytecode = True; sys.path.insert(0, '" REF5D_SOURCE_DIR
                               "/common/tools'); from plotting import inputs, timeline; "
                               "_, s = inputs.read_traces([sys.argv[1]])[0]; "
                               "b = timeline.blocks_of(timeline.classify(s), 'tp', 0, 200); "
                               "sys.exit([(x.start, x.end) for x in b] != [(10, 95), (95, 135)])";
    return std::system(("python3 -c \"" + script + "\" " + dir_.put("sums.json", events)).c_str());
  };
  EXPECT_EQ(blocks(), 0);
}

TEST_F(Plots, WhatIsWrongTakesOneLine) {
  const std::string out = dir_.path("o.png"), no_json = dir_.put("broken.json", "{"), other = dir_.put("other.json", "[1]");
  train();
  expect_refused("", {"required", "memory|traffic|timeline"});
  expect_refused("pie " + out + " " + report_, {"pie", "memory"});
  expect_refused("memory " + out, {"required"});
  expect_refused("memory " + out + " nowhere.json", {"nowhere.json", "No such file"});
  expect_refused("memory " + out + " " + no_json, {"broken.json", "is not JSON"});
  expect_refused("traffic " + out + " " + other, {"other.json", "is not a report", "--json"});
  expect_refused("timeline " + out + " " + other, {"other.json", "is not a trace", "--trace"});
  expect_refused("memory " + out + " " + trace_, {"trace.json", "is not a report"});
  expect_refused("timeline " + out + " " + report_, {"report.json", "is not a trace"});
  expect_refused("timeline " + out + " " + trace_ + " --ranks 0,7", {"no rank 7"});
  expect_refused("timeline " + out + " " + trace_ + " --step 3", {"steps 1 to 2"});
  expect_refused("timeline " + out + " " + trace_ + " --from-ms 5000000", {"nothing ran"});
  expect_refused("memory " + dir_.path("o.bmp") + " " + report_, {"o.bmp", ".png, .svg or .pdf"});
  expect_refused("memory " + dir_.path("none/o.png") + " " + report_, {"cannot be written"});
}

TEST_F(Plots, WithoutMatplotlibItSaysWhatToInstall) {
  dir_.put("matplotlib.py", "raise ImportError\n");
  RunOptions options;
  options.environment = {"PYTHONPATH=" + dir_.path()};
  expect_one_error(plot("memory " + dir_.path("o.png") + " " + report_, options), 2, {"no matplotlib", "python3-matplotlib"});
}

}  // namespace
}  // namespace ref5d::testing
