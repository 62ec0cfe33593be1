// Models whose layers are on several ranks train as one device does, by every schedule.
#include <numeric>

#include "common/device/error.h"
#include "tests/support/pipeline_testing.h"

namespace ref5d::testing {
namespace pipeline_schedules_test {

class PipelineSchedules : public PipelineTest {};

// From one micro-batch, and fewer than ranks, to three times as many; on more ranks, some of these.
std::set<int> numbers_of_micro_batches(const std::string& schedule, int ranks) {
  std::set<int> all{1, 2, 3, ranks, ranks + 1, 2 * ranks, 2 * ranks + 1, 3 * ranks};
  if (ranks == 4) all = {1, 3, ranks, 2 * ranks + 1, 3 * ranks};
  if (ranks > 4) all = {1, ranks + 3, 3 * ranks};
  if (kEmulated) all = {ranks + 1};
  std::erase_if(all, [&](int m) { return !schedule_defined(schedule, ranks, m); });
  if (all.empty()) all = {2 * ranks};
  return all;
}

constexpr const char* kModels[] = {"llama_qk_norm", "gpt2", "llama_tied", "gpt2_mixed"};

// Every number of micro-batches, and of chunks; models and runs of the schedule in turn. (Fewer micro-batches than ranks are
// among them: P36.)
TEST_F(PipelineSchedules, P36_EveryScheduleTrainsAsOnASingleDevice) {
  NEEDS_RANKS(2);
  auto mesh = pipeline_slice({.pp = n_});
  std::size_t turn = 0;
  for (const std::string& name : published_schedules(n_)) {
    for (const int m : numbers_of_micro_batches(name, n_)) {
      for (int v = 1; v <= 3; ++v) {
        if (kEmulated && name == "interleaved" && v != 2) continue;
        if (name != "interleaved" ? v > 1 : n_ > 3 && v != (m == 1 ? 3 : m == 3 * n_ ? 1 : 2)) continue;
        for (const std::int64_t runs : {1, 2}) {
          if ((n_ > 2 || kEmulated) && runs != 1 + static_cast<std::int64_t>(turn / 2) % 2) continue;
          const std::string model = kModels[turn++ % std::size(kModels)];
          const pipeline::Lesson lesson = pipeline_lesson(name, n_, m, v);
          const int stages = stages_of(lesson);
          const GptConfig c = with_layers(variant(model), n_ > 4 ? stages - 2 : stages);
          expect_as_alone(*mesh, pipelined_options(c, lesson, 1, runs), lesson, model);
        }
      }
    }
  }
}

// Pipelines of two beside each other, and interleaved groups of other sizes than are chosen.
TEST_F(PipelineSchedules, PipelinesBesideEachOtherAndGroups) {
  NEEDS_RANKS(3);
  if (n_ > 4 || kEmulated) return;
  auto mesh = pipeline_slice({.pp = 2});
  if (!mesh) return;
  for (const std::string& name : published_schedules(2)) {
    const pipeline::Lesson lesson = pipeline_lesson(name, 2, nearest_micro_batches(name, 2, 5));
    expect_as_alone(*mesh, pipelined_options(with_layers(variant("gpt2"), 4), lesson), lesson, "gpt2");
  }
  for (const int group : {1, 2, 3, 5}) {
    pipeline::Lesson lesson = pipeline_lesson("interleaved", 2, 5);
    lesson.schedule.group = group;
    expect_as_alone(*mesh, pipelined_options(with_layers(small(), 4), lesson), lesson, "small",
                    ", group " + std::to_string(group));
  }
}

std::string joined(const std::vector<int>& layers) {
  std::string text;
  for (int n : layers) text += (text.empty() ? "" : ",") + std::to_string(n);
  return text;
}

// Layers of so many stages: more for some than for others; and ends that are nothing but the embedding, or the head.
std::vector<std::vector<int>> uneven_stages(int stages) {
  std::vector<int> some(static_cast<std::size_t>(stages)), both(static_cast<std::size_t>(stages), 1);
  for (int s = 0; s < stages; ++s) some[static_cast<std::size_t>(s)] = 1 + s * 2 % 3;
  std::vector<int> first = some, last = some;
  first.front() = last.back() = both.front() = both.back() = 0;
  std::vector<std::vector<int>> all{some, first, last};
  if (stages > 2) all.push_back(both);
  return all;
}

TEST_F(PipelineSchedules, UnevenStagesTrainAsOnASingleDevice) {
  NEEDS_RANKS(2);
  if (kEmulated) return;
  auto mesh = pipeline_slice({.pp = n_});
  std::size_t turn = 0;
  for (const std::string& name : published_schedules(n_)) {
    pipeline::Lesson lesson = pipeline_lesson(name, n_, nearest_micro_batches(name, n_, n_ > 4 ? 3 : n_ + 1));
    for (const std::vector<int>& layers : uneven_stages(stages_of(lesson))) {
      const std::size_t now = turn++;
      if (n_ > 3 && now % (n_ > 4 ? 11 : 3) != 0) continue;
      const std::string model = kModels[now % std::size(kModels)];
      lesson.pipeline.stage_layers = joined(layers);
      const GptConfig c = with_layers(variant(model), std::accumulate(layers.begin(), layers.end(), 0));
      expect_as_alone(*mesh, pipelined_options(c, lesson), lesson, model);
    }
  }
}

// A model that is all on one rank, and a stage that has all layers.
TEST_F(PipelineSchedules, OneRankAlone) {
  auto mesh = pipeline_slice({.pp = 1});
  for (const std::string& name : published_schedules(1)) {
    if (n_ > 2 && name != "zb-v") continue;
    const pipeline::Lesson lesson = pipeline_lesson(name, 1, 3, 2);
    expect_as_alone(*mesh, pipelined_options(variant("llama_tied"), lesson), lesson, "llama_tied");
  }
}

// Sizes for which a schedule, or a cut, is not defined: every rank says the same.
TEST_F(PipelineSchedules, P46_WhatIsNotDefinedIsRefusedAlikeEverywhere) {
  auto mesh = pipeline_slice({.pp = n_});
  const struct {
    const char* name;
    int ranks, micro_batches, chunks, layers;
    const char* stage_layers;
  } kCases[] = {{"dualpipe", 4, 9, 2, 8, ""},  {"dualpipe", 4, 6, 2, 8, ""},    {"dualpipe", 3, 8, 2, 8, ""},
                {"dualpipe", 1, 2, 2, 8, ""},  {"dualpipev", 4, 7, 2, 8, ""},   {"dualpipev", 2, 3, 2, 8, ""},
                {"zb-v", 4, 8, 2, 5, ""},      {"interleaved", 2, 4, 4, 5, ""}, {"interleaved", 2, 4, 0, 5, ""},
                {"1f1b", 2, 0, 2, 4, ""},      {"1f1b", 4, 4, 2, 1, ""},        {"1f1b", 2, 4, 2, 4, "2,1"},
                {"1f1b", 2, 4, 2, 4, "2,1,1"}, {"1f1b", 3, 4, 2, 4, "2,0,2"},   {"1f1b", 2, 4, 2, 4, "5,-1"},
                {"1f1b", 2, 4, 2, 4, "two"},   {"1f1b", 2, 4, 2, 4, "2,,2"},    {"2f2b", 2, 4, 2, 4, ""},
                {"custom", 2, 4, 2, 4, ""}};
  for (const auto& c : kCases) {
    pipeline::Lesson lesson = pipeline_lesson(c.name, c.ranks, c.micro_batches, c.chunks);
    lesson.pipeline.stage_layers = c.stage_layers;
    const std::string error = input_error_of([&] { (void)plan_of(lesson, c.layers); });
    EXPECT_NE(error, "") << text(lesson) << ", " << c.layers << " layers";
    EXPECT_TRUE(same_on_all(*mesh, error)) << text(lesson);
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
  }
}

}  // namespace pipeline_schedules_test
}  // namespace ref5d::testing
