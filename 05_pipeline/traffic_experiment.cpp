#include <fmt/format.h>

#include <functional>

#include "02_ddp_zero/claims.h"
#include "02_ddp_zero/data_parallel.h"
#include "03_tensor_parallel/costs.h"
#include "03_tensor_parallel/cut.h"
#include "03_tensor_parallel/tensor_parallel.h"
#include "05_pipeline/costs.h"
#include "05_pipeline/experiments.h"
#include "common/app/measure.h"
#include "common/app/settings.h"
#include "common/comm/transport.h"
#include "common/verify/table.h"

namespace ref5d::pipeline {

namespace {

// One way to train the same model on the same batch of sequences on all ranks.
struct Way {
  std::string name, sends;
  std::int64_t expected;  // bytes that all ranks send in a step
  std::function<bool(const TrafficRow&)> counts;
  std::function<TrainerOptions(Mesh&)> settings;
  MeshSizes sizes;
};

bool is_pass(const std::string& phase) { return phase == "forward" || phase == "backward" || phase == "recomputation"; }

Way as_pipeline(Experiment& e, const Options& all, int n) {
  Lesson lesson = e.lesson;
  lesson.sabotage = nullptr;
  lesson.stage.strategy.kind = "naive";
  const auto plan = make_plan(make_schedule(lesson.schedule), model_config(all).layers, lesson.pipeline.stage_layers);
  Layout l{all, plan, lesson.schedule, e.options.grad_accum, {}};
  l.stage.model = model_config(all);
  l.stage.options = all;
  return {fmt::format("pp, {}", lesson.schedule.name),
          "a boundary, twice for each micro-batch",
          2 * crossings(plan->schedule) * e.options.grad_accum * boundary_bytes(l),
          [](const TrafficRow& r) { return r.phase == "boundaries"; },
          [&e, lesson](Mesh& mesh) { return plan_layout(e.options, lesson, e.world, mesh).settings; },
          {.pp = n}};
}

Way as_tensor_parallel(const Options& all, int n) {
  const GptConfig model = model_config(all);
  std::int64_t expected = 0;
  for (const PhaseTraffic& p : tensor_parallel::expected_traffic(all, model, n, 1, "naive"))
    if (is_pass(p.phase)) expected += p.bytes;
  return {"tp",
          "four all-reduces of a layer and micro-batch",
          expected,
          [](const TrafficRow& r) { return is_pass(r.phase) && r.axis == "tp"; },
          [all, model](Mesh& mesh) {
            TrainerOptions settings = trainer_options(all, model, 1, mesh.everyone().size());
            (void)tensor_parallel::apply(settings, mesh, {});
            data_parallel::StrategyOptions naive;
            naive.kind = "naive";
            data_parallel::apply(settings, mesh, naive, 1);
            return settings;
          },
          {.tp = n}};
}

// Its micro-batches shared by the ranks.
Way as_zero3(Options all, int n) {
  all.grad_accum /= n;
  const GptConfig model = model_config(all);
  data_parallel::StrategyOptions zero3;
  zero3.kind = "zero3";
  const data_parallel::Layout layout = data_parallel::layout_of(all, model, zero3, n, n);
  return {"zero3",
          "all weights twice and all gradients, for each micro-batch",
          data_parallel::expected_traffic(layout, zero3).total(),
          [](const TrafficRow& r) { return is_pass(r.phase) || r.phase == "gradients"; },
          [all, model, zero3, n](Mesh& mesh) {
            TrainerOptions settings = trainer_options(all, model, n, n);
            data_parallel::apply(settings, mesh, zero3, n);
            return settings;
          },
          {.edp = n}};
}

}  // namespace

void traffic_experiment(Experiment& e) {
  const int n = e.mesh.everyone().size();
  const GptConfig model = model_config(e.options);
  const auto leave_out = [&](const std::string& what, const std::string& why) {
    if (e.prints()) fmt::print("\ntraffic: {}left out, {}\n", what, why);
  };
  if (e.lesson.schedule.ranks != n || n == 1) return leave_out("", "since not all ranks are along pp; leave the axes out");
  if (!transport_counts_wire()) return leave_out("", "since NCCL's bytes are not counted");
  Options all = e.options;
  all.grad_accum *= e.lesson.schedule.micro_batches;
  std::vector<Way> ways{as_pipeline(e, all, n)};
  if (n <= std::min(model.heads, model.ffn)) {
    ways.push_back(as_tensor_parallel(all, n));
  } else {
    leave_out("tp is ", fmt::format("since {} heads cannot be on {} ranks", model.heads, n));
  }
  if (all.grad_accum % n == 0) {
    ways.push_back(as_zero3(all, n));
  } else {
    leave_out("zero3 is ", fmt::format("since {} micro-batches cannot be shared by {} ranks", all.grad_accum, n));
  }
  std::vector<std::vector<std::string>> table{{"", "sends", "bytes of all ranks in a step", "of pp's"}};
  std::int64_t of_pipeline = 0;
  for (const Way& way : ways) {
    Mesh mesh(way.sizes, e.mesh.everyone().ranks);
    const Measured m = measure("05_pipeline", e.options, way.settings(mesh), 1, e.world, mesh);
    if (!e.world.is_root()) continue;
    std::int64_t sent = 0;
    for (const TrafficRow& row : m.report.traffic) sent += way.counts(row) ? row.total_wire_bytes : 0;
    e.report.claims.push_back(make_claim(fmt::format("traffic, {}: sent by all ranks in a step", way.name),
                                         static_cast<double>(way.expected), static_cast<double>(sent), 0, "bytes"));
    if (of_pipeline == 0) of_pipeline = sent;
    table.push_back({way.name, way.sends, grouped_digits(sent),
                     fmt::format("{:.1f}x", static_cast<double>(sent) / static_cast<double>(of_pipeline))});
  }
  if (e.prints()) fmt::print("\nOne model and one batch on {} ranks\n{}", n, format_table(table, "llrr"));
}

}  // namespace ref5d::pipeline
