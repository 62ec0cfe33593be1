// Pipelines whose stages are cut along the other axes, too, and what must not depend on any of them.
#include "tests/support/golden_testing.h"
#include "tests/support/pipeline_testing.h"

namespace ref5d::testing {
namespace pipeline_axes_test {

class PipelineAxes : public PipelineTest {};

// How a stage is cut: sequence parallelism, and how the tokens of cp's ranks meet.
struct StageCut {
  PipelineSizes sizes;
  bool sp = false;
  const char* cp_kind = "ring";
  const char* cp_layout = "zigzag";
};
const StageCut kCuts[] = {{{.pp = 2, .tp = 2}},
                          {{.pp = 2, .tp = 2}, true},
                          {{.pp = 2, .cp = 2}},
                          {{.pp = 2, .cp = 2}, false, "ulysses", "contiguous"},
                          {{.pp = 2, .cp = 2}, false, "allgather", "striped"},
                          {{.pp = 2, .dp = 2, .tp = 2}},
                          {{.pp = 2, .dp = 2, .tp = 2}, true},
                          {{.pp = 4, .cp = 2}},
                          {{.pp = 4, .cp = 2}, false, "ulysses"},
                          {{.pp = 2, .cp = 2, .tp = 2}, true, "ring", "striped"},
                          {{.pp = 2, .dp = 2, .cp = 2}, false, "allgather"}};

pipeline::Lesson lesson_of_cut(const StageCut& cut, const std::string& schedule, int micro_batches, const StrategyCase& s) {
  pipeline::Lesson lesson = pipeline_lesson(schedule, cut.sizes.pp, micro_batches, 2, s);
  lesson.stage.sp = cut.sp;
  lesson.stage.context = context_of(cut.cp_kind, cut.cp_layout);
  return lesson;
}

// Kinds of strategies in turn: those that gather weights only with the schedules that allow it.
const char* strategy_in_turn(const std::string& schedule, std::size_t turn) {
  constexpr const char* kAll[] = {"ddp", "zero1", "zero2", "zero3", "naive"};
  const char* kind = kAll[turn % std::size(kAll)];
  return std::string(kind) == "zero3" && schedule != "gpipe" && schedule != "1f1b" ? "zero2" : kind;
}

// Every schedule with ranks along the other axes; models, strategies and recomputation in turn, under dropout.
TEST_F(PipelineAxes, EveryScheduleTrainsAsOnASingleDevice) {
  const Recompute recompute[] = {Recompute::kNone, Recompute::kSelective, Recompute::kFull};
  std::size_t cuts = 0;
  for (const StageCut& cut : kCuts) {
    std::size_t turn = cuts++;
    if (cut.sizes.ranks() != n_) continue;
    auto mesh = pipeline_slice(cut.sizes);
    for (const std::string& name : published_schedules(cut.sizes.pp)) {
      const std::size_t now = turn++;
      if (n_ > 2 && now % (n_ > 4 ? 3 : 2) != 0) continue;
      if (kEmulated && now % 4 != 0) continue;
      const std::string model = now % 2 == 0 ? "llama_mixed" : "llama_tied";
      const int m = nearest_micro_batches(name, cut.sizes.pp, n_ > 4 ? 2 : 3);
      const pipeline::Lesson lesson = lesson_of_cut(cut, name, m, strategy_case(strategy_in_turn(name, now)));
      TrainerOptions o =
          pipelined_options(with_layers(variant(model), std::max(2, stages_of(lesson) - 1)), lesson, cut.sizes.dp);
      o.model.dropout = 0.2;
      o.recompute = recompute[now % 3];
      expect_as_alone(*mesh, o, lesson, model, ", " + cut.sizes.text() + (cut.sp ? ", sp, " : ", ") + cut.cp_kind);
    }
  }
}

// Masks by sample and place, whichever stage draws them: the same again when a stage computes again.
TEST_F(PipelineAxes, P27_DropoutAndRecomputation) {
  NEEDS_RANKS(2);
  if (n_ > 4) return;
  auto mesh = pipeline_slice({.pp = n_});
  for (const std::string& name : published_schedules(n_)) {
    if ((n_ > 2 || kEmulated) && name != "zb-h1" && name != "dualpipev") continue;
    for (const char* model : {"llama_dropout", "gpt2_dropout"}) {
      if (n_ > 2 && model[0] == 'g') continue;
      const pipeline::Lesson lesson = pipeline_lesson(name, n_, nearest_micro_batches(name, n_, 3));
      TrainerOptions o = pipelined_options(with_layers(variant(model), stages_of(lesson)), lesson);
      const Dataset data = alone_.data(o);
      RunValues kept;
      for (const Recompute r : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
        o.recompute = r;
        const RunValues run = train_through(*mesh, o, lesson, data, 2);
        if (r == Recompute::kNone) kept = run;
        EXPECT_TRUE(same_bits(*mesh, run, kept)) << text(lesson) << static_cast<int>(r);
      }
      EXPECT_EQ(departure(*mesh, kept, alone_.of(*mesh, o, model)), "") << text(lesson);
    }
  }
}

// No more rounding than on one device.
TEST_F(PipelineAxes, LowPrecision) {
  if (kEmulated) return;  // one device alone takes it a minute
  std::size_t turn = 0;
  for (const PipelineSizes& sizes : {PipelineSizes{.pp = 2}, {.pp = 2, .tp = 2}, {.pp = 4}}) {
    if (sizes.ranks() != n_) continue;
    auto mesh = pipeline_slice(sizes);
    for (const std::string& name : published_schedules(sizes.pp)) {
      if (name == "gpipe" || name == "zb-h2" || (n_ > 2 && name != "zb-h1" && name != "dualpipe")) continue;
      const std::size_t now = turn++;
      const char* kinds[] = {"ddp", "zero1", "zero2"};
      const pipeline::Lesson lesson =
          pipeline_lesson(name, sizes.pp, nearest_micro_batches(name, sizes.pp, 4), 2, strategy_case(kinds[now % 3]));
      TrainerOptions o = pipelined_options(with_length(with_heads(8, 1), 16), lesson, sizes.dp);
      o.model.hidden = 32;
      o.model.layers = 4;
      o.model.tied = now % 2 == 1;
      o.model.init_std = 0.05;
      o.optimizer.adamw.lr = 1e-3;  // with larger steps rounding grows into other directions of Adam's
      const Dataset data = uneven_data(o.model, 2 * o.global_batch);
      const RunValues truth = train_alone(*mesh, o, data, 2);
      for (const Dtype dtype : {Dtype::kFp32, Dtype::kBf16}) {
        o.storage.dtype = dtype;
        o.storage.bf16_gradients = now % 2 == 0 ? GradientMode::kSeparate : GradientMode::kFused;
        const RunValues own = train_alone(*mesh, o, data, 2);
        EXPECT_EQ(departure(*mesh, train_through(*mesh, o, lesson, data, 2), truth, dtype, &own), "")
            << text(lesson) << ", " << dtype_name(dtype) << ", " << sizes.text();
      }
    }
  }
}

// PyTorch's values.
TEST_F(PipelineAxes, GoldenCases) {
  std::size_t turn = 0;
  for (const PipelineSizes& sizes : {PipelineSizes{.pp = 2}, {.pp = 2, .tp = 2}, {.pp = 2, .cp = 2}}) {
    if (sizes.ranks() != n_) continue;
    auto mesh = pipeline_slice(sizes);
    const bool here = mesh->everyone().rank == 0;
    for (const char* name : {"llama", "gpt2", "llama_packed", "llama_ignored_labels", "llama_mha_odd_vocab"}) {
      const GoldenCase golden = read_golden(name);
      const int micro_batches = static_cast<int>(golden.batch / golden.micro_batch);
      for (const std::string& schedule : published_schedules(sizes.pp)) {
        if (!schedule_defined(schedule, sizes.pp, micro_batches)) continue;
        const std::size_t now = turn++;
        const Dtype dtype = now % 3 == 0 ? Dtype::kFp32 : now % 3 == 1 ? Dtype::kFp64 : Dtype::kBf16;
        if (now % (kEmulated || n_ > 2 ? 7 : 2) != 0) continue;
        if (kEmulated && dtype != Dtype::kFp64) continue;
        pipeline::Lesson lesson = pipeline_lesson(schedule, sizes.pp, micro_batches);
        lesson.stage.sp = sizes.tp > 1 && now % 4 == 0;
        const auto apply = [&](TrainerOptions& o) { o = through_stages(*mesh, o, lesson).options; };
        const Verdict verdict = check_golden(golden, dtype, apply, here);
        EXPECT_TRUE(!here || verdict.checks().size() > 20) << name;
        EXPECT_TRUE(verdict.pass()) << name << " " << dtype_name(dtype) << ", " << text(lesson) << ", " << sizes.text() << "\n"
                                    << checks_table(verdict.checks());
      }
    }
  }
}

}  // namespace pipeline_axes_test
}  // namespace ref5d::testing
