// Experts on several ranks beside every other dimension, and what must not depend on any of them.
#include "tests/support/expert_testing.h"
#include "tests/support/golden_testing.h"

namespace ref5d::testing {
namespace expert_axes_test {

class ExpertAxes : public ExpertTest {};

const MeshSizes kLayouts[] = {{.edp = 2},
                              {.tp = 2},
                              {.cp = 2},
                              {.pp = 2},
                              {.tp = 3},
                              {.cp = 3},
                              {.edp = 2, .ep = 2},
                              {.ep = 2, .tp = 2},
                              {.ep = 2, .cp = 2},
                              {.pp = 2, .ep = 2},
                              {.cp = 2, .tp = 2},
                              {.ep = 3, .tp = 2},
                              {.ep = 2, .tp = 3},
                              {.ep = 3, .cp = 2},
                              {.edp = 2, .ep = 3},
                              {.pp = 2, .ep = 3},
                              {.edp = 2, .ep = 2, .tp = 2},
                              {.ep = 2, .cp = 2, .tp = 2},
                              {.edp = 2, .ep = 2, .cp = 2},
                              {.pp = 2, .ep = 2, .tp = 2},
                              {.pp = 2, .edp = 2, .ep = 2},
                              {.pp = 2, .ep = 2, .cp = 2},
                              {.pp = 4, .ep = 2},
                              {.pp = 2, .ep = 4},
                              {.ep = 4, .tp = 2},
                              {.ep = 4, .cp = 2}};

// The strategies of both groups of gradients, ordinary weights' and experts'.
StrategyCase strategy_in_turn(const ExpertCase& c, std::size_t turn) {
  constexpr const char* kKinds[] = {"ddp", "zero1", "zero2", "zero3", "hsdp", "naive"};
  const std::string kind = in_turn(kKinds, turn), &schedule = c.lesson.pipeline.schedule.name;
  const bool gathers = kind == "zero3" || kind == "hsdp";
  if (gathers && c.sizes.pp > 1 && schedule != "gpipe" && schedule != "1f1b") return strategy_case("zero2");
  const auto ranks = static_cast<int>(c.sizes.edp * c.sizes.ep * c.sizes.cp);
  return strategy_case(kind, kind == "hsdp" ? (ranks % 2 == 0 ? 2 : ranks) : 1);
}

ExpertCase case_in_turn(const MeshSizes& sizes, std::size_t i, std::size_t schedule) {
  constexpr const char* kDispatchers[] = {"alltoall", "hierarchical", "allgather"};
  constexpr const char* kSchedules[] = {"1f1b", "zb-h1", "dualpipe", "gpipe", "zb-v", "interleaved", "dualpipev", "zb-h2"};
  constexpr const char* kDocuments[] = {"none", "pack", "pad"};
  constexpr const char* kRecompute[] = {"none", "full", "selective"};
  ExpertCase c{.sizes = sizes, .options = expert_options(i % 2 == 0 ? "tiny-mixtral" : "tiny-deepseek")};
  c.lesson = expert_lesson(in_turn(kDispatchers, i));
  c.ranks_per_node = (sizes.ep * sizes.cp * sizes.tp + 1) / (i % 2 == 0 ? 1 : 2);  // one node along ep, or two
  set_schedule(c, in_turn(kSchedules, schedule), 2);
  seq_context_parallel::Lesson& stage = c.lesson.pipeline.stage;
  stage = lesson_of(strategy_in_turn(c, i + i / 6));
  c.lesson.expert.expert_tp = sizes.tp > 1 && i / 2 % 2 == 0;
  stage.sp = sizes.tp > 1 && i % 2 == 0;
  stage.sequence.keep = i / 3 % 2 == 0 ? "shard" : "gathered";
  stage.context =
      context_of(in_turn({"ring", "allgather", "ulysses"}, i), in_turn({"zigzag", "contiguous", "striped"}, i + i / 3));
  c.options.moe.top_k = in_turn({2, 1, 4, 3}, i + i / 4);
  c.options.moe.capacity_factor = in_turn({1.0, 0.0, 0.5}, i + i / 3);
  c.options.moe.pad_to_capacity = c.options.moe.capacity_factor > 0 && c.lesson.expert.dispatcher == "alltoall" && i % 4 == 0;
  c.options.moe.aux_kind = i / 2 % 2 == 0 ? "micro-batch" : "sequence";
  c.options.moe.z_coefficient = i % 3 == 0 ? 0.05 : 0;
  c.options.documents = in_turn(kDocuments, i + i / 3);
  c.options.recompute = in_turn(kRecompute, i + i / 3);
  c.options.dropout = i % 3 == 1 ? 0.2 : 0;
  c.lesson.expert.overlap = i % 5 != 0;
  return c;
}

// Everything else in turn: dispatchers, capacities, strategies, sequence parallelism, whole and cut experts, schedules, ...
TEST_F(ExpertAxes, EveryLayoutTrainsAsOnASingleDevice) {
  std::size_t layouts = 0, pipelines = 0;
  for (const MeshSizes& sizes : kLayouts) {
    const std::size_t first = layouts++;
    if (sizes.ranks() != n_) continue;
    auto mesh = world_slice(sizes);
    const std::size_t some = kEmulated ? 1 : n_ > 4 ? 2 : n_ > 2 ? 4 : 7;
    for (std::size_t i = 0; i < some; ++i) expect_as_alone(*mesh, case_in_turn(sizes, first + i, some * pipelines + i));
    pipelines += sizes.pp > 1 ? 1 : 0;
  }
}

// Gradients whose squares are the digits of 1111: a cut weight's, a whole one's, a tied one's, experts' of two ranks.
void plant_digits(Trainer& trainer, const Mesh& mesh, bool expert_tp) {
  const bool first = mesh.coordinate("tp") == 0, cut = mesh.size("tp") > 1;
  for (Parameter* p : trainer.gpt().parameters()) {
    const Tensor held = held_part(*p, p->final_gradient());
    std::vector<double> values(static_cast<std::size_t>(p->local_numel()), 0.0);
    if (!held || held.numel() == 0 || values.empty()) continue;
    const auto plant = [&](std::size_t i, double a, double b) {
      if (first || !cut) values[i] = a;
      if (!first || !cut) values[i + 1] = b;
    };
    const auto ends = [&](const char* what) { return p->name.ends_with(what); };
    if (ends("layers.0.self_attn.q_proj.weight")) plant(1, 0.6, 0.8);
    if (p->name == "model.norm.weight") values[0] = 1, values[1] = 3;
    if (p->name == "model.embed_tokens.weight") plant(2, 6, 8);
    if (ends("layers.1.block_sparse_moe.experts.0.w1.weight")) values[3] = expert_tp && !first ? 0 : 20;
    if (ends("layers.0.block_sparse_moe.experts.7.w2.weight")) {
      if (!expert_tp || first) values[0] = values[2] = 10;
      if (!expert_tp || !first) values[1] = 20;
    }
    const FlatRange range = flat_range(p->placement, p->local_numel());
    values = {values.begin() + range.begin, values.begin() + range.end};
    held.copy_from(HostTensor::from_doubles(values, {range.size()}, Dtype::kFp64), trainer.stream());
  }
}

// Padding, which holds 1e3, counts never; all ranks have the same bits.
TEST_F(ExpertAxes, T2_P19_DigitsOfTheNorm) {
  for (const MeshSizes& sizes : {MeshSizes{.ep = 2},
                                 {.pp = 2},
                                 {.ep = 3},
                                 {.edp = 2, .ep = 2},
                                 {.ep = 2, .cp = 2},
                                 {.pp = 2, .ep = 2},
                                 {.ep = 2, .tp = 2},
                                 {.ep = 5},
                                 {.ep = 3, .tp = 2},
                                 {.pp = 2, .ep = 2, .tp = 2},
                                 {.ep = 2, .cp = 2, .tp = 2},
                                 {.pp = 2, .ep = 4}}) {
    if (sizes.ranks() != n_) continue;
    auto mesh = world_slice(sizes);
    std::size_t turn = 0;
    for (const char* schedule : {"1f1b", "zb-h1", "dualpipe"}) {
      if (sizes.pp == 1 && schedule[0] != '1') continue;
      for (StrategyCase s : strategies_for(schedule, static_cast<int>(sizes.edp * sizes.ep * sizes.cp))) {
        for (const bool expert_tp : {false, true}) {
          if ((expert_tp && sizes.tp == 1) || ((n_ > 2 || kEmulated) && turn++ % (n_ > 4 ? 7 : 3) != 0)) continue;
          s.options.padding = 1e3;
          ExpertCase c{.sizes = sizes, .lesson = expert_lesson("alltoall", s)};
          c.options.tied = true;
          c.lesson.expert.expert_tp = expert_tp;
          c.lesson.pipeline.stage.sp = sizes.tp > 1;
          set_schedule(c, schedule, 1);
          const expert_parallel::LayoutPlan plan = plan_of_case(c, *mesh);
          const Dataset data = data_of(c, plan);
          const auto norm = [&](const expert_parallel::LayoutPlan& p) {
            Trainer trainer(p.settings, data);
            trainer.accumulate();
            plant_digits(trainer, *mesh, expert_tp);
            trainer.update();
            return trainer.optimizer().norm().to_doubles(trainer.stream())[0];
          };
          const double all = norm(plan);
          EXPECT_NEAR(all, 33.33166662, 1e-8) << c.text();
          EXPECT_NEAR(all * all, 1111, 1e-10) << c.text();
          EXPECT_TRUE(same_on_all(*mesh, bits_of({all}))) << c.text();
          if (sizes.ep == 1 || s.options.kind == "naive") continue;
          c.lesson.pipeline.stage.strategy.faults.experts_left_out_of_norm = true;
          EXPECT_LT(norm(plan_of_case(c, *mesh)), 33) << c.text();
        }
      }
    }
  }
}

// PyTorch's values.
TEST_F(ExpertAxes, GoldenCases) {
  std::size_t turn = 0;
  for (const Apart& apart : kApart) {
    if (apart.sizes.ep != 2 || apart.sizes.cp != 1 || apart.sizes.ranks() != n_) continue;
    auto mesh = world_slice(apart.sizes);
    const bool here = mesh->everyone().rank == 0;
    for (const char* name : {"mixtral", "mixtral_top1", "deepseek"}) {
      for (const bool fp64 : {true, false}) {
        const std::size_t now = turn++;
        const Dtype dtype = fp64 ? Dtype::kFp64 : now % 4 == 1 ? Dtype::kFp32 : Dtype::kBf16;
        const char* dispatcher = in_turn({"alltoall", "hierarchical", "allgather"}, now);
        if ((n_ > 2 && (fp64 ? apart.sp && (apart.expert_tp || name[0] == 'm') : now != 11)) || (kEmulated && now > 0))
          continue;
        const GoldenCase golden = read_golden(name);
        const RanksPerNode nodes(apart.sizes.tp);
        const ExpertCase c = apart.with({}, dispatcher);
        const auto apply = [&](TrainerOptions& o) {
          const seq_context_parallel::Lesson& stage = c.lesson.pipeline.stage;
          const auto tensor = seq_context_parallel::apply_cuts(o, *mesh, stage);
          expert_parallel::TensorAxis along{tensor, {}, o.model.seq};
          if (stage.sp) along.sequence = stage.sequence;
          (void)expert_parallel::apply(o, *mesh, c.lesson.expert, along);
          data_parallel::apply(o, *mesh, stage.strategy, 1);
        };
        const Verdict verdict = check_golden(golden, dtype, apply, here);
        EXPECT_TRUE(!here || verdict.checks().size() > 20) << name;
        EXPECT_TRUE(verdict.pass()) << name << " " << dtype_name(dtype) << ", " << c.text() << "\n"
                                    << checks_table(verdict.checks());
      }
    }
  }
}

// The classic mistakes, each beside the right run of the same settings.
TEST_F(ExpertAxes, P19_P47_P48_P50_P51_P53_MistakesAreNoticed) {
  NEEDS_RANKS(2);
  if (n_ != 2 || kEmulated) return;
  using expert_parallel::Faults;
  const struct {
    bool Faults::*fault;
    MeshSizes sizes;
  } kFaults[] = {{&Faults::router_unsummed, {.tp = 2}}, {&Faults::aux_per_rank, {.cp = 2}},  {&Faults::drop_by_rank, {.cp = 2}},
                 {&Faults::rows_by_sender, {.ep = 2}},  {&Faults::other_weights, {.ep = 2}}, {&Faults::own_load, {.ep = 2}}};
  const auto expect_found = [&](ExpertCase c, const auto& plant) {
    auto mesh = world_slice(c.sizes);
    expect_as_alone(*mesh, c);
    plant(c.lesson);
    const std::string found = expert_departure(*mesh, c);
    EXPECT_TRUE(mesh->everyone().rank != 0 || !found.empty()) << c.text();
  };
  for (const char* model : {"tiny-mixtral", "tiny-deepseek"}) {
    for (const auto& [fault, sizes] : kFaults) {
      if (fault == &Faults::own_load && model[5] == 'm') continue;
      ExpertCase c{.sizes = sizes, .options = expert_options(model)};
      if (fault == &Faults::drop_by_rank) c.options.moe.capacity_factor = 1;
      expect_found(c, [f = fault](expert_parallel::Lesson& lesson) { lesson.expert.faults.*f = true; });
    }
    const ExpertCase c{.sizes = {.ep = 2}, .options = expert_options(model)};
    expect_found(c, [](expert_parallel::Lesson& l) { l.pipeline.stage.strategy.faults.expert_gradient_factor = 2; });
    expect_found(c, [](expert_parallel::Lesson& l) { l.pipeline.stage.strategy.faults.experts_left_out_of_norm = true; });
  }
}

}  // namespace expert_axes_test
}  // namespace ref5d::testing
