// Pipelines whose stages have several replicas: what is summed where, how often, and what counts in the norm.
#include <cmath>
#include <map>

#include "common/device/error.h"
#include "tests/support/pipeline_testing.h"

namespace ref5d::testing {
namespace pipeline_strategies_test {

class PipelineStrategies : public PipelineTest {};

// Every strategy that the schedule works with.
std::vector<StrategyCase> strategies_for(const std::string& schedule, int ranks) {
  std::vector<StrategyCase> all = strategies(ranks);
  std::erase_if(all, [&](const StrategyCase& s) {
    const bool gathers = s.options.kind == "zero3" || s.options.kind == "hsdp";
    return gathers && schedule != "gpipe" && schedule != "1f1b";
  });
  return all;
}

// Two replicas and more; tied models, whose ends are on two ranks, on one, or on both of them.
TEST_F(PipelineStrategies, EveryStrategyTrainsAsOnASingleDevice) {
  for (const PipelineSizes& sizes : {PipelineSizes{.pp = 2, .dp = 2}, {.pp = 2, .dp = 4}, {.pp = 4, .dp = 2}}) {
    if (sizes.ranks() != n_) continue;
    auto mesh = pipeline_slice(sizes);
    std::size_t turn = 0;
    for (const std::string& name : published_schedules(sizes.pp)) {
      for (const StrategyCase& s : strategies_for(name, sizes.dp)) {
        const std::size_t now = turn++;
        if (n_ > 4 && now % 3 != 0) continue;
        if (kEmulated && s.options.kind != "zero2" && s.options.kind != "zero3") continue;
        const std::string model = now % 2 == 0 ? "llama_tied" : "gpt2";
        const pipeline::Lesson lesson = pipeline_lesson(name, sizes.pp, nearest_micro_batches(name, sizes.pp, 3), 2, s);
        const GptConfig c = with_layers(variant(model), std::max(2, stages_of(lesson) - 1));
        expect_as_alone(*mesh, pipelined_options(c, lesson, sizes.dp, n_ > 4 ? 1 : 1 + now / 2 % 2), lesson, model,
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
    std::size_t turn = 0;
    for (const std::string& name : published_schedules(sizes.pp)) {
      for (const int m : {1, 2, 3, 4, 5, 8}) {
        if (!schedule_defined(name, sizes.pp, m)) continue;
        for (const int runs : {1, 2}) {
          const std::size_t now = turn++;
          if ((n_ > 4 && now % 3 != 0) || (kEmulated && now % 5 != 0)) continue;
          const pipeline::Lesson lesson =
              pipeline_lesson(name, sizes.pp, m, 2, strategy_case(now % 2 == 0 ? "naive" : "ddp"));
          const std::string model = now % 4 < 2 ? "llama_tied" : "gpt2_mixed", what = text(lesson) + ", " + model;
          const TrainerOptions o =
              pipelined_options(with_layers(variant(model), stages_of(lesson)), lesson, sizes.dp, runs);
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

// Gives a tied weight's two ends gradients of their own, whatever backward has added.
class TiedGradients : public UnitHooks {
 public:
  TiedGradients(Gpt& gpt, Stream& stream, double first, double last)
      : gpt_(gpt), stream_(stream), first_(first), last_(last) {}
  void after_backward(std::int64_t unit) override {
    Parameter& p = *gpt_.embedding->tokens;
    if (unit == 0) fill_constant(stream_, p.final_gradient(), first_);
    if (unit + 1 == gpt_.unit_count()) fill_constant(stream_, p.final_gradient(), last_);
  }

 private:
  Gpt& gpt_;
  Stream& stream_;
  double first_, last_;
};

std::vector<double> held_tied_gradient(Trainer& trainer) {
  const Parameter& p = *trainer.gpt().embedding->tokens;
  const Tensor held = held_part(p, p.final_gradient());
  return held.numel() == 0 ? std::vector<double>() : held.to_doubles(trainer.stream());
}

// Whether both ends have the same weight, or the same shard of it.
bool ends_are_equal(Mesh& mesh, Trainer& trainer) {
  return equal_on_all(mesh["pp"].group(), {trainer.gpt().embedding->tokens->weight}, trainer.stream());
}

constexpr const char* kTiedKinds[] = {"naive", "ddp", "zero1", "zero2", "zero3"};

// Two replicas of two stages, whose ends' gradients are 1 and 4, and 2 and 8: both ends have 15, or 7.5 where the loss has been
// divided by 2. (Added after reduce-scatters of different shapes they were 9.5 and 7.)
TEST_F(PipelineStrategies, T4_P44_BothEndsOfATiedWeightHaveTheSumOfAll) {
  NEEDS_RANKS(4);
  if (n_ > 4) return;
  auto mesh = pipeline_slice({.pp = 2, .dp = 2});
  for (const char* kind : kTiedKinds) {
    for (const char* name : {"gpipe", "1f1b"}) {
      for (const double scale : {1.0, 0.5}) {
        for (const bool unsummed : {false, true}) {
          pipeline::Lesson lesson = pipeline_lesson(name, 2, 1, 2, strategy_case(kind));
          lesson.pipeline.faults.tied_unsummed = unsummed;
          const TrainerOptions o = pipelined_options(variant("llama_tied"), lesson, 2);
          const Dataset data = uneven_data(o.model, o.global_batch);
          Trainer trainer(through_stages(*mesh, o, lesson).options, data);
          const double own = (*mesh)["dp"].rank() + 1;
          TiedGradients planted(trainer.gpt(), trainer.stream(), scale * own, scale * 4 * own);
          trainer.gpt().hooks.insert(trainer.gpt().hooks.begin(), &planted);
          trainer.accumulate();
          const double expected = !unsummed ? 15 : (*mesh)["pp"].rank() == 0 ? 3 : 12;
          EXPECT_EQ(unlike(scale * expected, held_tied_gradient(trainer)), "") << kind << " " << name << " " << scale;
        }
      }
    }
  }
}

// After steps of AdamW the ends are equal in every bit, and what one device has.
TEST_F(PipelineStrategies, T4_TheEndsOfATiedWeightStayEqual) {
  NEEDS_RANKS(2);
  if (n_ == 3) return;
  const int dp = n_ / 2;
  auto mesh = pipeline_slice({.pp = 2, .dp = dp});
  for (const std::string& name : published_schedules(2)) {
    for (const char* kind : kTiedKinds) {
      if (std::string(kind) == "zero3" && name != "gpipe" && name != "1f1b") continue;
      if ((n_ > 4 || kEmulated) && name != "1f1b") continue;
      pipeline::Lesson lesson = pipeline_lesson(name, 2, nearest_micro_batches(name, 2, 3), 2, strategy_case(kind));
      const TrainerOptions o = pipelined_options(with_layers(variant("gpt2"), 4), lesson, dp);
      const Dataset data = uneven_data(o.model, 3 * o.global_batch);
      const RunValues truth = train_alone(*mesh, o, data, 3);
      int unequal = 0;
      const auto count = [&](Trainer& trainer) { unequal += ends_are_equal(*mesh, trainer) ? 0 : 1; };
      const bool copies_differ = name == "zb-v" || name == "dualpipev";  // both ends on one rank, none on the other
      const RunValues run = train_through(*mesh, o, lesson, data, 3, copies_differ ? OnStep() : OnStep(count));
      EXPECT_EQ(departure(*mesh, run, truth), "") << text(lesson);
      EXPECT_EQ(unequal, 0) << text(lesson);
      if (std::string(kind) != "ddp" || copies_differ || name == "dualpipe") continue;
      lesson.pipeline.faults.tied_unsummed = true;
      unequal = 0;
      expect_departs(*mesh, train_through(*mesh, o, lesson, data, 3, count), truth, text(lesson));
      EXPECT_EQ(unequal, 3) << text(lesson);
    }
  }
}

// Gradients whose squares are the digits of 111: 0.6 and 0.8 of a cut weight, 1 and 3 of a whole one, 6 and 8 of a tied one.
void plant_digits(Trainer& trainer, const Mesh& mesh) {
  const bool cut = mesh.size("tp") > 1, first = mesh.coordinate("tp") == 0;
  for (Parameter* p : trainer.gpt().parameters()) {
    const Tensor held = held_part(*p, p->final_gradient());
    std::vector<double> values(static_cast<std::size_t>(p->local_numel()), 0.0);
    if (!held || held.numel() == 0 || values.empty()) continue;
    const auto plant = [&](std::size_t i, double a, double b) {
      values[i] = first ? a : b;
      if (!cut) values[i + 1] = b;
    };
    if (p->name == "model.layers.0.self_attn.q_proj.weight") plant(1, 0.6, 0.8);
    if (p->name == "model.norm.weight") values[0] = 1, values[1] = 3;
    if (p->name == "model.embed_tokens.weight") plant(2, 6, 8);
    const FlatRange range = flat_range(p->placement, p->local_numel());
    values = {values.begin() + range.begin, values.begin() + range.end};
    held.copy_from(HostTensor::from_doubles(values, {range.size()}, Dtype::kFp64), trainer.stream());
  }
}

double norm_of_digits(Mesh& mesh, const pipeline::Lesson& lesson) {
  GptConfig c = variant("llama_tied");
  c.layers = std::max(c.layers, std::int64_t{stages_of(lesson)});
  const TrainerOptions o = pipelined_options(c, lesson, mesh["dp"].size());
  const Dataset data = uneven_data(o.model, o.global_batch);
  Trainer trainer(through_stages(mesh, o, lesson).options, data);
  trainer.accumulate();
  plant_digits(trainer, mesh);
  trainer.update();
  return trainer.optimizer().norm().to_doubles(trainer.stream())[0];
}

// Tied weights count once, and so do weights that two ranks have copies of; padding, which holds 1e3, never.
TEST_F(PipelineStrategies, T2_P18_DigitsOfTheNorm) {
  std::size_t turn = 0;
  for (const PipelineSizes& sizes : {PipelineSizes{.pp = 2},
                                     {.pp = 3},
                                     {.pp = 4},
                                     {.pp = 2, .dp = 2},
                                     {.pp = 2, .cp = 2},
                                     {.pp = 2, .tp = 2},
                                     {.pp = 2, .dp = 2, .tp = 2},
                                     {.pp = 4, .tp = 2}}) {
    if (sizes.ranks() != n_) continue;
    auto mesh = pipeline_slice(sizes);
    for (const std::string& name : published_schedules(sizes.pp)) {
      for (StrategyCase s : strategies_for(name, sizes.dp * sizes.cp)) {
        if ((n_ > 2 || kEmulated) && turn++ % (n_ > 4 ? 4 : 2) != 0) continue;
        s.options.padding = 1e3;
        pipeline::Lesson lesson = pipeline_lesson(name, sizes.pp, nearest_micro_batches(name, sizes.pp, 1), 2, s);
        lesson.stage.sp = sizes.tp > 1;
        const double norm = norm_of_digits(*mesh, lesson);
        EXPECT_NEAR(norm, std::sqrt(111.0), 1e-12) << sizes.text() << ", " << text(lesson);
        EXPECT_TRUE(same_on_all(*mesh, bits_of({norm}))) << sizes.text() << ", " << text(lesson);
      }
    }
  }
}

TEST_F(PipelineStrategies, P18_ATiedWeightCountedTwiceIsNoticed) {
  NEEDS_RANKS(2);
  auto mesh = pipeline_slice({.pp = 2});
  if (!mesh) return;
  for (const char* name : {"1f1b", "zb-h1", "interleaved"}) {
    pipeline::Lesson lesson = pipeline_lesson(name, 2, 2);
    lesson.pipeline.faults.tied_counts_twice = true;
    EXPECT_NEAR(norm_of_digits(*mesh, lesson), std::sqrt(211.0), 1e-12) << name;
  }
}

// The same bits of the norm on all ranks, as training has it, for every schedule: all stages clip by one factor.
TEST_F(PipelineStrategies, T2_AllRanksHaveOneNorm) {
  NEEDS_RANKS(2);
  const int dp = n_ % 2 == 0 && n_ > 2 ? 2 : 1, pp = n_ / dp;
  auto mesh = pipeline_slice({.pp = pp, .dp = dp});
  for (const std::string& name : published_schedules(pp)) {
    if (kEmulated && name != "dualpipe" && name != "1f1b") continue;
    pipeline::Lesson lesson = pipeline_lesson(name, pp, nearest_micro_batches(name, pp, 2), 2, strategy_case("zero1"));
    const TrainerOptions o = pipelined_options(with_layers(variant("gpt2"), stages_of(lesson)), lesson, dp);
    const auto norms = [&] { return train_through(*mesh, o, lesson, alone_.data(o), 2).grad_norms; };
    EXPECT_TRUE(same_on_all(*mesh, bits_of(norms()))) << text(lesson);
    if (name == "dualpipe" && pp == 2) continue;  // both ranks have all stages
    lesson.pipeline.faults.own_norm = true;
    EXPECT_FALSE(same_on_all(*mesh, bits_of(norms()))) << text(lesson);
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
