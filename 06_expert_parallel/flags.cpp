#include "06_expert_parallel/flags.h"

#include <fmt/format.h>

#include "04_seq_context_parallel/flags.h"
#include "05_pipeline/flags.h"
#include "06_expert_parallel/experiments.h"
#include "06_expert_parallel/sabotage.h"
#include "common/app/flag_scope.h"
#include "common/app/parallel_program.h"
#include "common/app/settings.h"
#include "common/device/error.h"

namespace ref5d::expert_parallel {

namespace {

constexpr std::int64_t kMostOfSizes = 1'000'000;

// Lessons 02 to 05, which work beside this one.
void declare_others(CommandLine& line, Flags& flags) {
  line.group("The other dimensions (lessons 02 to 05)");
  seq_context_parallel::declare_stage(line, flags.lesson.pipeline.stage, flags.ulysses_size);
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
  line.add_flag("--expert-tp", expert.expert_tp,
                "with --tp: cut every expert; else a rank has whole ones for some of the rows");
  line.add_option("--route-replay", flags.route_replay,
                  "what chooses: a file's experts (sub/I/experts of a full dump), own: every run its own, auto: in fp32 and "
                  "bf16 the fp64 baseline's",
                  "auto|own|FILE");
  line.add_switch("--overlap", flags.overlap,
                  "communicate while computing; shared experts while tokens travel, on a stream of their own");
  line.add_choice("--experiment", flags.experiment, "side experiments, each with its claims", experiment_names());
  line.add_option("--link-mbit", flags.link_mbit, "of virtual time: Mbit/s of a rank's link", {.min = 0.001, .max = 1e9});
  line.add_option("--link-latency", flags.link_latency_us, "of virtual time: microseconds of a message",
                  {.min = 0, .max = 1e9});
  line.add_option("--virtual-trace", flags.virtual_trace, "where --experiment overlap writes its timelines", "PREFIX");
  declare_others(line, flags);
  for (const auto& sabotage : sabotages()) line.add_sabotage(sabotage.name, sabotage.breaks);
}

namespace {

// Without axes all ranks are along ep, but for two along what a sabotage needs.
void choose_axes(Options& o, int ranks) {
  if (!o.axes.empty()) return;
  const bool planted = !o.sabotage.empty() && o.sabotage != "list";
  const std::string axis = planted ? find_sabotage(o.sabotage).axis : "ep";
  if (axis != "ep" && ranks % 2 == 0) {
    o.axes[axis] = 2;
    ranks /= 2;
  }
  o.axes["ep"] = ranks;
}

void settle_sabotage(const CommandLine& line, Options& o, Lesson& lesson, int ranks) {
  if (o.sabotage.empty()) return;
  if (!o.verify) throw InputError("--sabotage needs the checks that --no-verify leaves out; give one of them");
  const Sabotage& sabotage = find_sabotage(o.sabotage);
  const MeshSizes sizes = mesh_sizes(o, ranks);
  const std::string axis = sabotage.axis;
  if ((axis == "ep" ? sizes.ep : axis == "tp" ? sizes.tp : sizes.cp) == 1)
    throw InputError(
        fmt::format("--sabotage {} needs two ranks along {}; start mpiexec -n 2 and leave the axes out", o.sabotage, axis));
  lesson.sabotage = &sabotage;
  sabotage.prepare(o, lesson, line);
}

void check_scopes(const CommandLine& line, const Flags& flags, const MeshSizes& sizes, const GptConfig& model) {
  const Lesson& lesson = flags.lesson;
  const seq_context_parallel::Lesson& stage = lesson.pipeline.stage;
  const auto of = [](const char* axis, std::int64_t size) { return fmt::format("--{} {}", axis, size); };
  expect_scope(line, "--dispatcher", of("ep", sizes.ep), sizes.ep > 1, "several ranks along ep");
  expect_scope(line, "--expert-tp", of("tp", sizes.tp), sizes.tp > 1, "several ranks along tp");
  expect_scope(line, "--sp", of("tp", sizes.tp), sizes.tp > 1, "several ranks along tp");
  expect_scope(line, "--sp-keep", "--sp left out", stage.sp, "--sp");
  for (const char* flag : {"--cp-kind", "--cp-layout"})
    expect_scope(line, flag, of("cp", sizes.cp), sizes.cp > 1, "several ranks along cp");
  expect_scope(line, "--ulysses-size", "--cp-kind " + stage.context.kind, stage.context.kind == "ulysses", "--cp-kind ulysses");
  for (const char* flag : {"--schedule", "--micro-batches", "--chunks"})
    expect_scope(line, flag, of("pp", sizes.pp), sizes.pp > 1, "several ranks along pp");
  expect_scope(line, "--chunks", "--schedule " + lesson.pipeline.schedule.name, lesson.pipeline.schedule.name == "interleaved",
               "--schedule interleaved");
  expect_scope(line, "--shard-size", "--strategy " + stage.strategy.kind, stage.strategy.kind == "hsdp", "--strategy hsdp");
  for (const char* flag : {"--link-mbit", "--link-latency", "--virtual-trace"})
    expect_scope(line, flag, "--experiment " + flags.experiment, flags.experiment == "overlap" || flags.experiment == "all",
                 "--experiment overlap");
  expect_scope(line, "--aux-kind", "--aux-coef 0", model.moe.aux_coefficient > 0, "a balance loss");
}

void check_dispatcher(const Lesson& lesson, const MeshSizes& sizes, const GptConfig& model) {
  const std::string& dispatcher = lesson.expert.dispatcher;
  if (model.moe.pad_to_capacity && sizes.ep > 1 && dispatcher != "alltoall")
    throw InputError(
        fmt::format("--pad-to-capacity is for --dispatcher alltoall, whose messages it makes equal; leave --dispatcher {} "
                    "or --pad-to-capacity out",
                    dispatcher));
}

}  // namespace

void settle(const CommandLine& line, Options& options, Flags& flags, int ranks) {
  Lesson& lesson = flags.lesson;
  choose_axes(options, ranks);
  seq_context_parallel::Lesson& stage = lesson.pipeline.stage;
  stage.context.ulysses_size = static_cast<int>(flags.ulysses_size);
  stage.context.overlap = stage.tensor.overlap = lesson.expert.overlap = flags.overlap;
  stage.strategy.reduce_dtype = options.reduce_dtype;
  pipeline::ScheduleOptions& schedule = lesson.pipeline.schedule;
  schedule.ranks = static_cast<int>(mesh_sizes(options, ranks).pp);
  schedule.chunks = static_cast<int>(flags.chunks);
  schedule.micro_batches = static_cast<int>(flags.micro_batches == 0 ? 2 * schedule.ranks : flags.micro_batches);
  lesson.routes = flags.route_replay;
  options.replay_routes = flags.route_replay != "own";
  settle_sabotage(line, options, lesson, ranks);
  const GptConfig model = model_config(options);
  if (!model.has_experts())
    throw InputError(fmt::format("--model {} has no experts to share out; use tiny-mixtral or tiny-deepseek", options.model));
  const MeshSizes sizes = mesh_sizes(options, ranks);
  check_scopes(line, flags, sizes, model);
  check_dispatcher(lesson, sizes, model);
  if (sizes.pp > 1) pipeline::check_strategy(lesson.pipeline);
}

}  // namespace ref5d::expert_parallel
