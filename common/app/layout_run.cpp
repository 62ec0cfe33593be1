#include "common/app/layout_run.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/app/baseline.h"
#include "common/app/output.h"
#include "common/app/parallel_program.h"
#include "common/app/program.h"
#include "common/device/device.h"
#include "common/train/checkpoint.h"
#include "common/verify/run_checks.h"

namespace ref5d {

namespace {

// Rank 0 trains it; returns how many steps are to be compared, on all ranks.
std::int64_t train_baselines(LayoutRun& run, const Options& options, const TrainerOptions& single, const Dataset& data,
                             World& world, bool replays) {
  if (!options.verify) return 0;
  RouteLog keep(run.baseline_routes, RouteLog::Mode::kKeep), replay(run.baseline_routes, RouteLog::Mode::kReplay);
  return std::stoll(on_root(world, [&] {
    const auto train = [&](Dtype dtype, std::int64_t steps) {
      TrainerOptions settings = single;
      if (single.model.has_experts() && single.routes == nullptr)
        settings.routes = dtype == Dtype::kFp64 ? &keep : replays ? &replay : nullptr;
      return train_baseline(options, settings, data, dtype, steps);
    };
    run.baselines = run_baselines(options.dtype, std::min(options.steps, options.verify_steps), train);
    if (!run.baselines.why_fewer.empty() && !options.quiet) fmt::print("{}\n", run.baselines.why_fewer);
    return std::to_string(run.baselines.steps);
  }));
}

}  // namespace

LayoutRun run_layout(const Options& options, const TrainerOptions& single, const TrainerOptions& settings, const Dataset& data,
                     World& world, Mesh& mesh, const std::function<bool(Trainer&)>& replicas_agree) {
  LayoutRun run;
  run.routes = run.baseline_routes = {single.model.seq, single.model.moe.top_k, {}};
  const bool replays = single.model.has_experts() && single.routes == nullptr && options.verify && options.replay_routes &&
                       options.dtype != Dtype::kFp64;
  const std::int64_t compared = train_baselines(run, options, single, data, world, replays);
  TrainerOptions own = settings;
  if (replays) run.routes = Routes::from_bytes(share_on_host(mesh.everyone(), run.baseline_routes.to_bytes()));
  RouteLog keep(run.routes, RouteLog::Mode::kKeep);
  const bool keeps = single.model.has_experts() && options.verify;
  if (keeps && own.routes == nullptr) own.routes = &keep;
  world.traffic().reset();
  Trainer trainer(own, data);
  if (!options.resume.empty()) resume(trainer, options.resume);
  RunOutputs outputs(trainer, data, options, settings.global_batch, world.is_root());
  outputs.gather_spans = [&](const std::vector<TraceSpan>& mine) { return gather_spans(world, mine); };
  const StepPrinter printer(options.steps, options.quiet || !world.is_root());
  std::int64_t unequal_steps = 0;
  run.record = record_run(trainer, options.steps, compared, [&](std::int64_t step, const StepResult& r) {
    outputs.after_step(step, r);
    printer.step(step, r);
    if (step < compared && replicas_agree && !replicas_agree(trainer)) ++unequal_steps;
  });
  world.order().finish(world.everyone());
  device().synchronize();
  run.traffic = world.traffic();
  outputs.finish(run.record);
  run.sample = outputs.sample();
  if (keeps)
    for (const Bytes& bytes : gather_on_host(mesh.everyone(), run.routes.to_bytes()))
      run.unequal_choices += run.routes.merge(Routes::from_bytes(bytes));
  run.checks_replicas = replicas_agree != nullptr;
  for (const Bytes& of_rank : gather_on_host(mesh.everyone(), to_bytes(static_cast<double>(unequal_steps))))
    run.unequal_steps = std::max(run.unequal_steps, static_cast<std::int64_t>(to_number(of_rank)));
  return run;
}

Verdict compare_with_baseline(const Options& options, const LayoutRun& run, const World& world) {
  Verdict verdict;
  if (!options.verify || !world.is_root()) return verdict;
  const bool fp64 = options.dtype == Dtype::kFp64;
  check_run(verdict, options.dtype, run.record.values, run.baselines.truth.values, fp64 ? nullptr : &run.baselines.own.values);
  if (fp64 && !run.baseline_routes.chosen.empty())
    verdict.add("routing/choices that are not the baseline's", "number",
                static_cast<double>(run.routes.differences(run.baseline_routes)), 0);
  if (!run.routes.chosen.empty())
    verdict.add("routing/choices that ranks have made differently", "number", static_cast<double>(run.unequal_choices), 0);
  if (run.checks_replicas)
    verdict.add("replicas/steps after which their weights differ", "number", static_cast<double>(run.unequal_steps), 0);
  return verdict;
}

void check_norms(Verdict& verdict, const RunRecord& record, const Mesh& mesh) {
  std::vector<double> norms;
  for (const StepResult& step : record.steps) norms.push_back(step.grad_norm);
  const auto* begin = reinterpret_cast<const std::byte*>(norms.data());
  const std::vector<Bytes> all = gather_on_host(mesh.everyone(), Bytes(begin, begin + norms.size() * sizeof(double)));
  const auto others = std::count_if(all.begin(), all.end(), [&](const Bytes& b) { return b != all.front(); });
  if (!all.empty()) verdict.add("grad norm/ranks that have another", "number", static_cast<double>(others), 0);
}

Report report_layout(const std::string& program, const Options& options, const GptConfig& model, const LayoutRun& run,
                     const Verdict& verdict, World& world, const Mesh& mesh) {
  Report report = new_report(program, options, model);
  report.baseline_loss = run.baselines.truth.values.losses;
  report.sample = run.sample;
  report.mesh = mesh.sizes();  // among how many devices an mfu is shared
  fill_report(report, options, model, run.record, verdict);
  gather_report(report, world, mesh, run.traffic);
  return report;
}

}  // namespace ref5d
