// Pipelines whose stages have several replicas: what is reduced, when, and how often.
#include <map>

#include "common/device/error.h"
#include "tests/support/pipeline_testing.h"

namespace ref5d::testing {
namespace pipeline_strategies_test {

// Two replicas and more; tied models, whose ends are on two ranks, on one, or on both of them.
TEST_F(PipelineStrategies, EveryStrategyTrainsAsOnASingleDevice) {
  for (const PipelineSizes& sizes : {PipelineSizes{.pp = 2, .dp = 2}, {.pp = 2, .dp = 4}, {.pp = 4, .dp = 2}}) {
    if (sizes.ranks() != n_) continue;
    auto mesh = pipeline_slice(sizes);
    std::size_t turn = 0;
    for (const std::string& name : published_schedules(sizes.pp)) {
      for (const StrategyCase& s : strategies_for(name, sizes.dp)) {
        const std::size_t now = turn++;
        if (n_ > 4 && now % 5 != 0) continue;
        if (kEmulated && s.options.kind != "zero2" && s.options.kind != "zero3") continue;
        const std::string model = now % 2 == 0 ? "llama_tied" : "gpt2";
        const pipeline::Lesson lesson = pipeline_lesson(name, sizes.pp, nearest_micro_batches(name, sizes.pp, 3), 2, s);
        const GptConfig c = with_layers(variant(model), std::max(2, stages_of(lesson) - 1));
        expect_as_alone(*mesh, pipelined_options(c, lesson, sizes.dp, n_ > 4 || now / 2 % 2 == 0 ? 1 : 2), lesson, model,
                        ", " + s.text());
      }
    }
  }
}

// Which micro-batches' tensors a rank has seen, by name.
class CountingProbe : public Probe {
 public:
  void see(const std::string& name, const Tensor&, Stream&) override { ++counts[name]; }
  [[nodiscard]] bool wants_sublayers() const override { return true; }
  std::map<std::string, int> counts;
};

// Of one step: how often each gradient became final, and what passed through the layers.
struct StepCounts {
  std::map<std::string, int> finals;
  std::map<std::string, int> seen;
  TrafficCount reduced;
  RunValues values;
};
StepCounts count_step(const StageSettings& settings, const Dataset& data) {
  StepCounts counts;
  Trainer trainer(settings.options, data);
  for (Parameter* p : trainer.gpt().parameters())
    p->on_final.emplace_back([&](Parameter& q, Stream& stream) {
      ++counts.finals[q.name];
      return &stream;
    });
  CountingProbe probe;
  trainer.context().probe = &probe;
  const TrafficCount before = world().traffic().total("", "", "gradients");
  counts.values = values_of_steps(trainer, 1, false);
  trainer.context().probe = nullptr;
  counts.seen = probe.counts;
  counts.reduced = world().traffic().total("", "", "gradients");
  counts.reduced.calls -= before.calls;
  counts.reduced.payload -= before.payload;
  std::int64_t numel = 0, used = 0;
  for (const Parameter* p : trainer.gpt().parameters()) {
    EXPECT_EQ(p->pending(), 0) << p->name;
    EXPECT_EQ(counts.finals[p->name], p->uses > 0 ? 1 : 0) << p->name;
    numel += p->uses > 0 ? p->local_numel() : 0;
    used += p->uses > 0 ? 1 : 0;
  }
  EXPECT_GT(used, 0);
  EXPECT_EQ(counts.reduced.payload, static_cast<std::int64_t>(sizeof(double)) * numel);
  EXPECT_LE(counts.reduced.calls, used);
  return counts;
}

// Every layer of the rank had as many forwards and backwards as micro-batches came by.
void expect_each_once(const StepCounts& counts, int micro_batches, const std::string& what) {
  int layers = 0;
  for (const auto& [name, seen] : counts.seen) {
    if (!name.starts_with("sub/") && !name.starts_with("sub_grad/") && !name.starts_with("hidden/")) continue;
    EXPECT_EQ(seen, micro_batches) << name << ", " << what;
    layers += name.starts_with("sub_grad/") ? 1 : 0;
  }
  EXPECT_GT(layers, 0) << what;
}

// Every micro-batch's passes once, and one reduction of each gradient after the last, also on a stage whose schedule has no
// cool-down (P40), and where there are fewer micro-batches than stages (P36).
TEST_F(PipelineStrategies, T10_P40_EachPassOnceAndOneReduction) {
  for (const PipelineSizes& sizes : {PipelineSizes{.pp = 2, .dp = 2}, {.pp = 4, .dp = 2}}) {
    if (sizes.ranks() != n_) continue;
    auto mesh = pipeline_slice(sizes);
    SingleRuns alone(1);
    for (const std::string& name : published_schedules(sizes.pp)) {
      std::size_t turn = 0;
      for (const int m : {1, 2, 3, 4, 5, 8}) {
        if (!schedule_defined(name, sizes.pp, m)) continue;
        for (const int runs : {1, 2}) {
          const std::size_t now = turn++;
          if ((n_ > 4 || kEmulated) && now % 5 != 0) continue;
          const pipeline::Lesson lesson = pipeline_lesson(name, sizes.pp, m, 2, strategy_case(now % 2 == 0 ? "naive" : "ddp"));
          const std::string model = now % 4 < 2 ? "llama_tied" : "gpt2_mixed", what = text(lesson) + ", " + model;
          const TrainerOptions o = pipelined_options(with_layers(variant(model), stages_of(lesson)), lesson, sizes.dp, runs);
          const StageSettings settings = through_stages(*mesh, o, lesson);
          SCOPED_TRACE(what);
          const StepCounts counts = count_step(settings, alone.data(o));
          const bool copies = settings.pipeline->plan().assignment.copies();
          expect_each_once(counts, runs * m / (copies ? 2 : 1), what);
          EXPECT_EQ(departure(*mesh, counts.values, alone.of(*mesh, o, model)), "") << what;
        }
      }
    }
  }
}

// The classic mistakes, each beside the right run of the same settings.
TEST_F(PipelineStrategies, P05_P41_P46_MistakesAreNoticed) {
  NEEDS_RANKS(4);
  if (n_ > 4 || kEmulated) return;
  auto mesh = pipeline_slice({.pp = 2, .dp = 2});
  using pipeline::Faults;
  for (const auto& [name, fault] : {std::pair{"1f1b", &Faults::mean_per_micro_batch},
                                    {"zb-h1", &Faults::weights_after_reduction},
                                    {"zb-v", &Faults::weights_after_reduction},
                                    {"gpipe", &Faults::tied_unsummed},
                                    {"zb-h2", &Faults::tied_counts_twice},
                                    {"interleaved", &Faults::own_norm},
                                    {"dualpipe", &Faults::copies_unsummed}}) {
    pipeline::Lesson lesson = pipeline_lesson(name, 2, 4);
    const TrainerOptions o = pipelined_options(with_layers(variant("llama_tied"), 4), lesson, 2);
    expect_as_alone(*mesh, o, lesson, "llama_tied");
    lesson.pipeline.faults.*fault = true;
    const std::string found = pipeline_departure(*mesh, o, lesson, "llama_tied");
    EXPECT_TRUE(mesh->everyone().rank != 0 || !found.empty()) << name;
  }
}

}  // namespace pipeline_strategies_test
}  // namespace ref5d::testing
