// What stages add up: the gradients of a weight that two of them have, and the norm.
#include <cmath>

#include "common/kernels/random.h"
#include "tests/support/pipeline_testing.h"

namespace ref5d::testing {
namespace pipeline_sums_test {

// Gives a tied weight's two ends gradients of their own, whatever backward has added.
class TiedGradients : public UnitHooks {
 public:
  TiedGradients(Gpt& gpt, Stream& stream, double first, double last) : gpt_(gpt), stream_(stream), first_(first), last_(last) {}
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
  if (n_ != 2 && n_ != 4) return;
  const int dp = n_ / 2;
  auto mesh = pipeline_slice({.pp = 2, .dp = dp});
  std::size_t turn = 0;
  for (const std::string& name : published_schedules(2)) {
    for (const char* kind : kTiedKinds) {
      if (std::string(kind) == "zero3" && name != "gpipe" && name != "1f1b") continue;
      if ((kEmulated && name != "1f1b") || (name != "1f1b" && turn++ % 3 != 0)) continue;
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
        if ((n_ > 2 || kEmulated) && turn++ % (n_ > 4 ? 7 : 3) != 0) continue;
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
  if (!mesh || n_ > 4) return;
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
    if ((n_ > 4 || kEmulated) && name != "dualpipe" && name != "1f1b") continue;
    pipeline::Lesson lesson = pipeline_lesson(name, pp, nearest_micro_batches(name, pp, 2), 2, strategy_case("zero1"));
    const TrainerOptions o = pipelined_options(with_layers(variant("gpt2"), stages_of(lesson)), lesson, dp);
    const auto norms = [&] { return train_through(*mesh, o, lesson, alone_.data(o), 2).grad_norms; };
    EXPECT_TRUE(same_on_all(*mesh, bits_of(norms()))) << text(lesson);
    if (name == "dualpipe" && pp == 2) continue;  // both ranks have all stages
    lesson.pipeline.faults.own_norm = true;
    EXPECT_FALSE(same_on_all(*mesh, bits_of(norms()))) << text(lesson);
  }
}

}  // namespace pipeline_sums_test
}  // namespace ref5d::testing
