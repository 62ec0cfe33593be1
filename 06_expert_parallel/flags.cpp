#include "06_expert_parallel/flags.h"

#include <fmt/format.h>

#include "04_seq_context_parallel/context_parallel.h"
#include "06_expert_parallel/experiments.h"
#include "06_expert_parallel/sabotage.h"
#include "common/app/parallel_program.h"
#include "common/app/settings.h"
#include "common/device/error.h"

namespace ref5d::expert_parallel {

namespace {

constexpr std::int64_t kMostOfSizes = 1'000'000;

// Lessons 02 to 05, which work beside this one.
void declare_others(CommandLine& line, Flags& flags) {
  line.group("The other dimensions (lessons 02 to 05)");
  seq_context_parallel::Lesson& stage = flags.lesson.pipeline.stage;
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
  line.add_option("--ulysses-size", flags.ulysses_size, "ulysses: neighbours that exchange heads; 0: all of cp",
                  {.min = 0, .max = 1 << 24});
  line.add_choice("--schedule", flags.lesson.pipeline.schedule.name, "with --pp: in which order ranks compute (lesson 05)",
                  pipeline::schedule_names());
  line.add_option("--micro-batches", flags.micro_batches,
                  "with --pp: of one run of the schedule, of which a step makes --grad-accum; 0: two for each rank along pp",
                  {.min = 0, .max = kMostOfSizes});
  line.add_option("--chunks", flags.chunks, "interleaved: stages on each rank", {.min = 1, .max = kMostOfSizes});
}

}  // namespace

void declare(CommandLine& line, Flags& flags) {
  for (const char* axis : {"ep", "dp", "pp", "cp", "tp"}) line.allow_axis(axis);
  line.allow_experts();
  line.group("This lesson");
  ExpertParallelOptions& expert = flags.lesson.expert;
  line.add_choice("--dispatcher", expert.dispatcher, "how tokens get to their experts' ranks", dispatcher_names());
  line.add_flag("--expert-tp", expert.expert_tp, "with --tp: cut every expert; else a rank has whole ones for some of the rows");
  line.add_option("--route-replay", flags.route_replay,
                  "what chooses: a file's experts (sub/I/experts of a full dump), own: every run its own, auto: in fp32 and "
                  "bf16 the fp64 baseline's",
                  "auto|own|FILE");
  line.add_switch("--overlap", flags.overlap, "communicate while computing; shared experts on a stream of their own");
  line.add_choice("--experiment", flags.experiment, "side experiments, each with its claims", experiment_names());
  declare_others(line, flags);
  for (const auto& sabotage : sabotages()) line.add_sabotage(sabotage.name, sabotage.breaks);
}

void settle(const CommandLine& line, Options& options, Flags& flags, int ranks) {
  (void)line;
  Lesson& lesson = flags.lesson;
  if (options.axes.empty()) options.axes["ep"] = ranks;
  seq_context_parallel::Lesson& stage = lesson.pipeline.stage;
  stage.context.ulysses_size = static_cast<int>(flags.ulysses_size);
  stage.context.overlap = stage.tensor.overlap = lesson.expert.overlap = flags.overlap;
  stage.strategy.reduce_dtype = options.reduce_dtype;
  pipeline::ScheduleOptions& schedule = lesson.pipeline.schedule;
  schedule.ranks = static_cast<int>(mesh_sizes(options, ranks).pp);
  schedule.chunks = static_cast<int>(flags.chunks);
  schedule.micro_batches = static_cast<int>(flags.micro_batches == 0 ? 2 * schedule.ranks : flags.micro_batches);
  options.replay_routes = flags.route_replay != "own";
}

}  // namespace ref5d::expert_parallel
