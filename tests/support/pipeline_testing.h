// Help for testing pipelines: meshes of pp x dp x cp x tp, and runs on them beside a single device's.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "05_pipeline/pipeline_parallel.h"
#include "05_pipeline/run.h"
#include "05_pipeline/sabotage.h"
#include "tests/support/pipeline_schedules_testing.h"
#include "tests/support/seq_context_testing.h"

namespace ref5d::testing {

// How many ranks there are along each axis.
struct PipelineSizes {
  int pp = 1, dp = 1, cp = 1, tp = 1;
  [[nodiscard]] int ranks() const { return pp * dp * cp * tp; }
  [[nodiscard]] std::string text() const {
    return "pp " + std::to_string(pp) + ", dp " + std::to_string(dp) + ", cp " + std::to_string(cp) + ", tp " +
           std::to_string(tp);
  }
};

inline std::optional<Mesh> pipeline_slice(const PipelineSizes& sizes) {
  return world_slice({.pp = sizes.pp, .edp = sizes.dp, .cp = sizes.cp, .tp = sizes.tp});
}

// Those that so many ranks can follow.
inline std::vector<std::string> published_schedules(int ranks) {
  std::vector<std::string> names = pipeline::schedule_names();
  std::erase_if(names, [&](const std::string& name) { return name == "custom" || (name == "dualpipe" && ranks % 2 != 0); });
  return names;
}

// Micro-batches of one run, as near to those wished for as the schedule can take.
inline int nearest_micro_batches(const std::string& schedule, int ranks, int wished) {
  int m = wished;
  while (!schedule_defined(schedule, ranks, m)) ++m;
  return m;
}

inline pipeline::Lesson pipeline_lesson(const std::string& schedule, int ranks, int micro_batches, int chunks = 2,
                                        const StrategyCase& s = strategy_case("ddp")) {
  pipeline::Lesson lesson;
  lesson.schedule.name = schedule;
  lesson.schedule.ranks = ranks;
  lesson.schedule.micro_batches = micro_batches;
  lesson.schedule.chunks = chunks;
  lesson.stage = lesson_of(s);
  return lesson;
}

inline std::string text(const pipeline::Lesson& l) {
  return l.schedule.name + " on " + std::to_string(l.schedule.ranks) + " ranks, " + std::to_string(l.schedule.micro_batches) +
         " micro-batches" + (l.schedule.name == "interleaved" ? ", " + std::to_string(l.schedule.chunks) + " chunks" : "") +
         (l.pipeline.stage_layers.empty() ? "" : ", layers " + l.pipeline.stage_layers) + ", " + l.stage.strategy.kind;
}

inline int stages_of(const pipeline::Lesson& l) { return pipeline::make_schedule(l.schedule).stages; }

inline std::shared_ptr<const pipeline::Plan> plan_of(const pipeline::Lesson& l, std::int64_t layers) {
  auto plan = pipeline::make_plan(pipeline::make_schedule(l.schedule), layers, l.pipeline.stage_layers);
  return l.pipeline.faults.receives_by_need ? pipeline::with_receives_by_need(*plan) : plan;
}

inline GptConfig with_layers(GptConfig c, std::int64_t layers) {
  c.layers = layers;
  return c;
}

// The settings of a run in which each replica runs the schedule so many times, on micro-batches of some rows.
inline TrainerOptions pipelined_options(const GptConfig& c, const pipeline::Lesson& l, std::int64_t replicas = 1,
                                        std::int64_t runs = 1, std::int64_t rows = 1) {
  return replicated_options(c, replicas, {runs * l.schedule.micro_batches * rows, rows});
}

// A rank's settings, and what its schedule runs in.
struct StageSettings {
  TrainerOptions options;
  std::shared_ptr<pipeline::Pipeline> pipeline;
};
inline StageSettings through_stages(Mesh& mesh, TrainerOptions o, const pipeline::Lesson& l,
                                    const std::shared_ptr<const pipeline::Plan>& plan) {
  const int shard_size = static_cast<int>(std::max<std::int64_t>(l.stage.shard_size, 1));
  auto runtime = pipeline::apply(o, mesh, plan, l, shard_size);
  return {std::move(o), std::move(runtime)};
}
inline StageSettings through_stages(Mesh& mesh, const TrainerOptions& o, const pipeline::Lesson& l) {
  return through_stages(mesh, o, l, plan_of(l, o.model.layers));
}

// On the ranks of the mesh; tensors end up on its rank 0.
inline RunValues train_through(const StageSettings& settings, const Dataset& data, std::int64_t steps,
                               const OnStep& on_step = {}) {
  Trainer trainer(settings.options, data);
  return values_of_steps(trainer, steps, settings.options.storage.dtype != Dtype::kFp64, on_step);
}
inline RunValues train_through(Mesh& mesh, const TrainerOptions& o, const pipeline::Lesson& l, const Dataset& data,
                               std::int64_t steps, const OnStep& on_step = {}) {
  return train_through(through_stages(mesh, o, l), data, steps, on_step);
}

// The runs of one device, each once: many schedules train the same model on the same batch.
class SingleRuns {
 public:
  explicit SingleRuns(std::int64_t steps) : steps_(steps) {}
  const RunValues& of(const Mesh& mesh, const TrainerOptions& o, const std::string& model) {
    const std::string key = model + "/" + std::to_string(o.model.layers) + "/" + std::to_string(o.global_batch);
    const auto found = runs_.find(key);
    if (found != runs_.end()) return found->second;
    return runs_[key] = train_alone(mesh, o, data(o), steps_);
  }
  [[nodiscard]] Dataset data(const TrainerOptions& o) const { return uneven_data(o.model, steps_ * o.global_batch); }
  [[nodiscard]] std::int64_t steps() const { return steps_; }

 private:
  std::int64_t steps_;
  std::map<std::string, RunValues> runs_;
};

// Every strategy that the schedule works with.
inline std::vector<StrategyCase> strategies_for(const std::string& schedule, int ranks) {
  std::vector<StrategyCase> all = strategies(ranks);
  std::erase_if(all, [&](const StrategyCase& s) {
    const bool gathers = s.options.kind == "zero3" || s.options.kind == "hsdp";
    return gathers && schedule != "gpipe" && schedule != "1f1b";
  });
  return all;
}

// The tests of pipelines: cases that train many models compare each with one device's run.
class PipelineTest : public LayoutTest {
 protected:
  void SetUp() override {
    if (n_ > 4 && n_ != 8) GTEST_SKIP() << "needs 1 to 4 ranks, or 8";
  }
  const int n_ = world().size();
  SingleRuns alone_{2};

  // What departs from the single device's run, after the same steps.
  std::string pipeline_departure(Mesh& mesh, const TrainerOptions& o, const pipeline::Lesson& lesson,
                                 const std::string& model) {
    const RunValues& truth = alone_.of(mesh, o, model);
    const Dataset data = alone_.data(o);
    return departure(mesh, train_through(mesh, o, lesson, data, alone_.steps()), truth);
  }
  void expect_as_alone(Mesh& mesh, const TrainerOptions& o, const pipeline::Lesson& lesson, const std::string& model,
                       const std::string& more = "") {
    EXPECT_EQ(pipeline_departure(mesh, o, lesson, model), "")
        << text(lesson) << ", " << model << ", " << o.model.layers << " layers, " << o.global_batch << " rows" << more;
  }
};

// Its tests are in two files.
class PipelineStrategies : public PipelineTest {};

// Whether all ranks of a mesh have the same.
inline bool same_on_all(const Mesh& mesh, const std::string& mine) {
  const std::vector<Bytes> all = all_gather_on_host(mesh.everyone(), to_bytes(mine));
  return std::all_of(all.begin(), all.end(), [&](const Bytes& b) { return b == all.front(); });
}
inline std::string bits_of(const std::vector<double>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(double));
}

}  // namespace ref5d::testing
