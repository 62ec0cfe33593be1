// What every program of several ranks does: trains the baseline on one device and the layout on all ranks, and compares.
#pragma once

#include <functional>
#include <string>

#include "common/app/options.h"
#include "common/comm/mesh.h"
#include "common/comm/world.h"
#include "common/model/route_log.h"
#include "common/train/baselines.h"
#include "common/verify/report.h"

namespace ref5d {

struct LayoutRun {
  Baselines baselines;  // on rank 0
  // Of a model with experts, with options.verify, on rank 0: the choices of all tokens in the layout, and those of the fp64
  // baseline's.
  Routes routes, baseline_routes;
  std::int64_t unequal_choices = 0;  // of tokens that several ranks have routed, and not alike
  RunRecord record;                  // the layout's
  TrafficLedger traffic;             // of the steps
  std::string sample;                // the text that --sample asks for
  bool checks_replicas = false;      // whether any rank holds what another holds
  std::int64_t unequal_steps = 0;    // compared steps after which ranks that hold the same weights did not: on rank 0
  // The baseline in the dtype under test.
  [[nodiscard]] const RunRecord& baseline() const { return baselines.own.steps.empty() ? baselines.truth : baselines.own; }
};

// In fp32 and bf16 a model with experts replays the choices of the fp64 baseline, on one device as in the layout, unless
// `single` has routes already. All ranks call it. `single` are the settings of one device, `settings` the same with the layout
// applied. After each compared step replicas_agree, if given, says whether what this rank holds agrees with the others'.
[[nodiscard]] LayoutRun run_layout(const Options& options, const TrainerOptions& single, const TrainerOptions& settings,
                                   const Dataset& data, World& world, Mesh& mesh,
                                   const std::function<bool(Trainer&)>& replicas_agree);

// The comparison with the baseline, and that of the replicas: on rank 0, nothing elsewhere or without --verify.
[[nodiscard]] Verdict compare_with_baseline(const Options& options, const LayoutRun& run, const World& world);

// That all ranks have found the same norm in every step, to the last bit: they must clip by one factor (pitfalls P19, T2). All
// ranks call it.
void check_norms(Verdict& verdict, const RunRecord& record, const Mesh& mesh);

// The report with every rank's memory and traffic: rank 0's. All ranks call it.
[[nodiscard]] Report report_layout(const std::string& program, const Options& options, const GptConfig& model,
                                   const LayoutRun& run, const Verdict& verdict, World& world, const Mesh& mesh);

}  // namespace ref5d
