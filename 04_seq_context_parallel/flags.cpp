#include "04_seq_context_parallel/flags.h"

#include <fmt/format.h>

#include "04_seq_context_parallel/experiments.h"
#include "04_seq_context_parallel/sabotage.h"
#include "common/app/flag_scope.h"
#include "common/app/parallel_program.h"
#include "common/device/error.h"

namespace ref5d::seq_context_parallel {

void declare_stage(CommandLine& line, Lesson& stage, std::int64_t& ulysses_size) {
  line.add_choice("--strategy", stage.strategy.kind, "of the ranks that share weights (lesson 02)",
                  data_parallel::strategy_names());
  line.add_option("--shard-size", stage.shard_size, "hsdp: ranks that share a copy; 0: chosen as in lesson 02", {.min = 0});
  line.add_flag("--sp", stage.sp, "with --tp: sequence parallelism (lesson 04)");
  line.add_choice("--sp-keep", stage.sequence.keep, "--sp: keep layers' inputs cut, or gathered",
                  sequence_parallel::keep_names());
  line.add_choice("--cp-kind", stage.context.kind, "how tokens on several ranks meet in attention (lesson 04)",
                  context_parallel::kind_names());
  line.add_choice("--cp-layout", stage.context.layout, "which tokens of a sequence a rank has",
                  context_parallel::layout_names());
  line.add_option("--ulysses-size", ulysses_size, "ulysses: neighbours that exchange heads; 0: all of cp",
                  {.min = 0, .max = 1 << 24});
}

void declare(CommandLine& line, Flags& flags) {
  Lesson& lesson = flags.lesson;
  line.allow_axis("dp");
  line.allow_axis("cp");
  line.allow_axis("tp");
  line.group("This lesson");
  line.add_flag("--sp", lesson.sp, "with --tp: sequence parallelism, norms and residuals on an Nth of the tokens");
  line.add_choice("--sp-keep", lesson.sequence.keep, "--sp: keep the layers' inputs cut and gather them again, or gathered",
                  sequence_parallel::keep_names());
  line.add_choice("--cp-kind", lesson.context.kind, "how tokens on several ranks meet in attention",
                  context_parallel::kind_names());
  line.add_choice("--cp-layout", lesson.context.layout, "which tokens of a sequence a rank has",
                  context_parallel::layout_names());
  line.add_option("--ulysses-size", flags.ulysses_size,
                  "ulysses: neighbours that exchange heads; groups of them form a ring; 0: all of cp",
                  {.min = 0, .max = 1 << 24});
  line.add_switch("--overlap", flags.overlap, "communicate while computing: the next hop's keys, input gradients, kept inputs");
  line.add_choice("--strategy", lesson.strategy.kind, "of the ranks that gradients are summed over, dp x cp (lesson 02)",
                  data_parallel::strategy_names());
  line.add_option("--shard-size", lesson.shard_size, "hsdp: ranks that share a copy; 0: chosen as in lesson 02", {.min = 0});
  line.add_option("--memory-cap", lesson.memory_cap_mib, "MiB that a rank's ledger may hold; 0: no cap",
                  {.min = 0, .max = 1e9});
  line.add_choice("--experiment", flags.experiment, "side experiments, each with its claims", experiment_names());
  line.add_option("--link-mbit", flags.link_mbit, "of virtual time: Mbit/s of a rank's link", {.min = 0.001, .max = 1e9});
  line.add_option("--link-latency", flags.link_latency_us, "of virtual time: microseconds of an exchange",
                  {.min = 0, .max = 1e9});
  line.add_option("--virtual-trace", flags.virtual_trace, "where --experiment balance and overlap write their timelines",
                  "PREFIX");
  for (const auto& sabotage : sabotages()) line.add_sabotage(sabotage.name, sabotage.breaks);
}

namespace {

void check_scopes(const CommandLine& line, const Flags& flags, std::int64_t cp, std::int64_t tp) {
  const Lesson& lesson = flags.lesson;
  const std::string experiment = "--experiment " + flags.experiment;
  const auto runs = [&](const char* name) { return flags.experiment == name || flags.experiment == "all"; };
  const std::string of_cp = fmt::format("--cp {}", cp), of_tp = fmt::format("--tp {}", tp);
  expect_scope(line, "--sp", of_tp, tp > 1, "several ranks along tp");
  expect_scope(line, "--sp-keep", "--sp left out", lesson.sp, "--sp");
  const bool layouts = cp > 1 || runs("balance") || runs("compare") || runs("length");
  expect_scope(line, "--cp-kind", of_cp, layouts, "several ranks along cp");
  expect_scope(line, "--cp-layout", of_cp, layouts, "several ranks along cp");
  expect_scope(line, "--ulysses-size", "--cp-kind " + lesson.context.kind, lesson.context.kind == "ulysses",
               "--cp-kind ulysses");
  expect_scope(line, "--link-mbit", experiment, runs("overlap") || runs("balance"), "--experiment overlap or balance");
  expect_scope(line, "--link-latency", experiment, runs("overlap") || runs("balance"), "--experiment overlap or balance");
  expect_scope(line, "--virtual-trace", experiment, runs("overlap") || runs("balance"), "--experiment overlap or balance");
  expect_scope(line, "--shard-size", "--strategy " + lesson.strategy.kind, lesson.strategy.kind == "hsdp", "--strategy hsdp");
}

void settle_sabotage(const CommandLine& line, Options& options, Lesson& lesson, int ranks) {
  if (options.sabotage.empty()) return;
  if (!options.verify) throw InputError("--sabotage needs the checks that --no-verify leaves out; give one of them");
  const Sabotage& sabotage = find_sabotage(options.sabotage);
  const std::string axis = sabotage.axis;
  if (options.axes.empty()) options.axes[axis] = ranks;
  if (axis == "tp" && !lesson.sp) {
    lesson.sp = true;
    options.sabotage_flags += " --sp";
  }
  const MeshSizes sizes = mesh_sizes(options, ranks);
  const auto along = static_cast<int>(axis == "tp" ? sizes.tp : sizes.cp);
  if (along == 1)
    throw InputError(
        fmt::format("--sabotage {} needs several ranks along {}; start mpiexec -n 2 and leave --dp, --cp and --tp out",
                    options.sabotage, axis));
  lesson.sabotage = &sabotage;
  sabotage.prepare(options, lesson, line, along);
}

}  // namespace

void settle(const CommandLine& line, Options& options, Flags& flags, int ranks) {
  Lesson& lesson = flags.lesson;
  lesson.context.ulysses_size = static_cast<int>(flags.ulysses_size);
  lesson.context.overlap = lesson.tensor.overlap = flags.overlap;
  lesson.strategy.reduce_dtype = options.reduce_dtype;
  settle_sabotage(line, options, lesson, ranks);
  if (options.axes.empty()) options.axes[lesson.sp ? "tp" : "cp"] = ranks;
  const MeshSizes sizes = mesh_sizes(options, ranks);
  check_scopes(line, flags, sizes.cp, sizes.tp);
}

}  // namespace ref5d::seq_context_parallel
