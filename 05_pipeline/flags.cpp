#include "05_pipeline/flags.h"

#include <fmt/format.h>

#include "04_seq_context_parallel/flags.h"
#include "05_pipeline/experiments.h"
#include "05_pipeline/sabotage.h"
#include "05_pipeline/schedule_csv.h"
#include "common/app/flag_scope.h"
#include "common/app/parallel_program.h"
#include "common/device/error.h"

namespace ref5d::pipeline {

namespace {

constexpr std::int64_t kMostOfSizes = 1'000'000;

}  // namespace

void declare(CommandLine& line, Flags& flags) {
  Lesson& lesson = flags.lesson;
  for (const char* axis : {"pp", "dp", "cp", "tp"}) line.allow_axis(axis);
  line.group("This lesson");
  line.add_choice("--schedule", lesson.schedule.name, "in which order ranks compute; custom: see --schedule-file",
                  schedule_names());
  line.add_option("--micro-batches", flags.micro_batches,
                  "of one run of the schedule, of which a step makes --grad-accum; 0: two for each rank along pp",
                  {.min = 0, .max = kMostOfSizes});
  line.add_option("--chunks", flags.chunks, "interleaved: stages on each rank", {.min = 1, .max = kMostOfSizes});
  line.add_option("--group", flags.group, "interleaved: micro-batches that pass a chunk before the next; 0: chosen",
                  {.min = 0, .max = kMostOfSizes});
  line.add_option("--schedule-file", lesson.schedule.file,
                  "a schedule of your own: a row for each rank, cells such as 2F0, 1I3, 0W2", "CSV");
  line.add_option("--stage-layers", lesson.pipeline.stage_layers,
                  "layers of each stage, in place of an even cut; the first and the last may have 0", "2,1,1");
  line.add_choice_or_flag("--print-schedule", flags.print_schedule,
                          "draw the schedule for --pp ranks, or write it as CSV, and end; alone: grid", {"grid", "csv"});
  line.add_flag("--poison", lesson.pipeline.links.poison, "fill message buffers with NaN when they are given away");
  seq_context_parallel::declare_stage(line, lesson.stage, flags.ulysses_size);
  line.add_switch("--overlap", flags.overlap, "tp and cp: communicate while computing");
  line.add_choice("--experiment", flags.experiment, "side experiments, each with its claims", experiment_names());
  line.add_option("--link-mbit", flags.link_mbit, "of virtual time: Mbit/s of a rank's link", {.min = 0.001, .max = 1e9});
  line.add_option("--link-latency", flags.link_latency_us, "of virtual time: microseconds of a message",
                  {.min = 0, .max = 1e9});
  line.add_option("--virtual-trace", flags.virtual_trace,
                  "--experiment bubble writes PREFIX.SCHEDULE.unit.json and .measured.json", "PREFIX");
  for (const auto& sabotage : sabotages()) line.add_sabotage(sabotage.name, sabotage.breaks);
}

void settle_schedule(const CommandLine& line, Options& options, Flags& flags, int ranks) {
  ScheduleOptions& schedule = flags.lesson.schedule;
  const bool custom = !schedule.file.empty();
  if (custom && line.given("--schedule") && schedule.name != "custom")
    throw InputError(fmt::format("--schedule {} and --schedule-file contradict each other; give one of them", schedule.name));
  if (custom) schedule.name = "custom";
  const bool planted = !options.sabotage.empty() && options.sabotage != "list";
  const int dp = planted ? find_sabotage(options.sabotage).dp : 1;  // replicas that it needs
  if (options.axes.empty()) options.axes["pp"] = ranks % dp == 0 ? ranks / dp : ranks;
  const auto pp = options.axes.find("pp");
  schedule.ranks = pp == options.axes.end() ? 1 : static_cast<int>(pp->second);
  schedule.chunks = static_cast<int>(flags.chunks);
  schedule.group = static_cast<int>(flags.group);
  schedule.micro_batches = static_cast<int>(flags.micro_batches == 0 ? 2 * schedule.ranks : flags.micro_batches);
  if (custom) {
    const Schedule file = read_csv(schedule.file);
    if (flags.micro_batches == 0) schedule.micro_batches = file.micro_batches;
    if (!flags.print_schedule.empty() && !line.given("--pp")) schedule.ranks = file.rank_count();
  }
  for (const char* flag : {"--chunks", "--group"})
    if (line.given(flag) && schedule.name != "interleaved")
      throw InputError(fmt::format("{} means nothing with --schedule {}; it is for interleaved", flag, schedule.name));
}

namespace {

void check_scopes(const CommandLine& line, const Flags& flags, const MeshSizes& sizes) {
  const seq_context_parallel::Lesson& stage = flags.lesson.stage;
  const std::string experiment = "--experiment " + flags.experiment;
  const bool bubble = flags.experiment == "bubble" || flags.experiment == "all";
  const std::string of_cp = fmt::format("--cp {}", sizes.cp), of_tp = fmt::format("--tp {}", sizes.tp);
  expect_scope(line, "--sp", of_tp, sizes.tp > 1, "several ranks along tp");
  expect_scope(line, "--sp-keep", "--sp left out", stage.sp, "--sp");
  expect_scope(line, "--cp-kind", of_cp, sizes.cp > 1, "several ranks along cp");
  expect_scope(line, "--cp-layout", of_cp, sizes.cp > 1, "several ranks along cp");
  expect_scope(line, "--ulysses-size", "--cp-kind " + stage.context.kind, stage.context.kind == "ulysses", "--cp-kind ulysses");
  expect_scope(line, "--overlap", "--tp 1 and --cp 1", sizes.tp > 1 || sizes.cp > 1, "several ranks along tp or cp");
  for (const char* flag : {"--link-mbit", "--link-latency", "--virtual-trace"})
    expect_scope(line, flag, experiment, bubble, "--experiment bubble");
  expect_scope(line, "--shard-size", "--strategy " + stage.strategy.kind, stage.strategy.kind == "hsdp", "--strategy hsdp");
}

}  // namespace

// ZeRO-3 gathers weights for each pass of a micro-batch and lets go of them unit by unit. That is for one stage on a rank and
// whole backwards. With more stages, or F&B, whose phases take turns, units of two stages would be there together; and the
// second half of a split backward adds to gradients of weights that are gone.
void check_strategy(const Lesson& lesson) {
  const std::string& strategy = lesson.stage.strategy.kind;
  const std::string& schedule = lesson.schedule.name;
  if ((strategy != "zero3" && strategy != "hsdp") || schedule == "gpipe" || schedule == "1f1b") return;
  throw InputError(
      fmt::format("--strategy {} gathers a stage's weights for every pass, one unit at a time, which --schedule {} "
                  "does not keep to; use gpipe or 1f1b, or zero2",
                  strategy, schedule));
}

namespace {

void settle_sabotage(const CommandLine& line, Options& options, Lesson& lesson, int ranks) {
  if (options.sabotage.empty()) return;
  if (!options.verify) throw InputError("--sabotage needs the checks that --no-verify leaves out; give one of them");
  const Sabotage& sabotage = find_sabotage(options.sabotage);
  if (lesson.schedule.ranks == 1)
    throw InputError(fmt::format("--sabotage {} needs two ranks along pp{}; start mpiexec -n {} and leave the axes out",
                                 options.sabotage, sabotage.dp > 1 ? ", and two replicas of each" : "", 2 * sabotage.dp));
  lesson.sabotage = &sabotage;
  sabotage.prepare(options, lesson, line);
  if (mesh_sizes(options, ranks).edp < sabotage.dp)
    throw InputError(fmt::format("--sabotage {} needs {} ranks for each stage; start mpiexec -n 4 with --pp 2 --dp {}",
                                 options.sabotage, sabotage.dp, sabotage.dp));
}

}  // namespace

void settle(const CommandLine& line, Options& options, Flags& flags, int ranks) {
  Lesson& lesson = flags.lesson;
  lesson.stage.context.ulysses_size = static_cast<int>(flags.ulysses_size);
  lesson.stage.context.overlap = lesson.stage.tensor.overlap = flags.overlap;
  lesson.stage.strategy.reduce_dtype = options.reduce_dtype;
  settle_sabotage(line, options, lesson, ranks);
  check_scopes(line, flags, mesh_sizes(options, ranks));
  check_strategy(lesson);
}

}  // namespace ref5d::pipeline
