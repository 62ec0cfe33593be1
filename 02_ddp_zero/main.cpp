// 02_ddp_zero: data parallelism, from an all-reduce after backward to fully sharded state.
#include "02_ddp_zero/experiments.h"
#include "common/app/command_line.h"
#include "common/app/output.h"
#include "common/app/parallel_program.h"
#include "common/device/error.h"

using namespace ref5d;
using namespace ref5d::data_parallel;

namespace {

// Flags that a strategy does not know are refused, rather than ignored.
void check_flags(const CommandLine& line, const StrategyOptions& s, const std::string& experiment) {
  // What zero2 does with whole gradients is what zero1 does.
  const std::string kind = s.kind == "zero2" && s.keep_full_gradients ? "zero2 --keep-full-gradients" : s.kind;
  const struct {
    const char* flag;
    std::vector<std::string> strategies;
  } kOnlyWith[] = {{"--bucket-mb", {"ddp", "zero1", "zero2 --keep-full-gradients"}},
                   {"--overlap", {"ddp", "zero1", "zero2 --keep-full-gradients"}},
                   {"--sync-every-micro-batch", {"ddp", "zero1"}},
                   {"--all-reduce-gradients", {"zero1"}},
                   {"--unit", {"zero2", "zero3", "hsdp"}},
                   {"--prefetch", {"zero3", "hsdp"}},
                   {"--shard-size", {"hsdp"}}};
  for (const auto& [flag, strategies] : kOnlyWith) {
    if (flag == std::string("--shard-size") && experiment != "none") continue;  // experiments run hsdp, too
    if (!line.given(flag) || std::find(strategies.begin(), strategies.end(), kind) != strategies.end()) continue;
    throw InputError(std::string(flag) + " means nothing with --strategy " + kind + "; it is for " + join(strategies, ", "));
  }
  for (const char* flag : {"--link-mbit", "--link-latency", "--virtual-trace"})
    if (line.given(flag) && experiment == "none") throw InputError(std::string(flag) + " is for --experiment overlap");
  if (s.keep_full_gradients && s.kind != "zero2")
    throw InputError("--keep-full-gradients means nothing with --strategy " + s.kind + "; it is for zero2");
}

}  // namespace

int main(int argc, char** argv) {
  return run_parallel_program("02_ddp_zero", argv, [&](World& world) {
    CommandLine line("02_ddp_zero",
                     "Trains the tiny GPT on several ranks that share the batch, and checks that they equal one.", Options());
    Lesson lesson;
    StrategyOptions& strategy = lesson.strategy;
    double bucket_mb = strategy.bucket_bytes / 0x1p20;
    std::string unit = "block";
    line.allow_axis("dp");
    line.group("This lesson");
    line.add_choice("--strategy", strategy.kind, "who holds what, and when it travels", strategy_names());
    line.add_option("--bucket-mb", bucket_mb, "ddp, zero1: MiB of gradients that are reduced together", {.min = 0});
    line.add_switch("--overlap", strategy.overlap, "ddp, zero1: reduce while backward goes on");
    line.add_flag("--sync-every-micro-batch", strategy.sync_every_micro_batch, "ddp, zero1: what forgetting no_sync costs");
    line.add_flag("--keep-full-gradients", strategy.keep_full_gradients, "zero2: sum micro-batches first, reduce once");
    line.add_flag("--all-reduce-gradients", strategy.all_reduce_gradients, "zero1: what missing the reduce-scatter costs");
    line.add_choice("--unit", unit, "zero2, zero3, hsdp: what is gathered and reduced at a time", {"block", "model"});
    line.add_switch("--prefetch", strategy.prefetch, "zero3, hsdp: gather the next unit during this one's work");
    line.add_option("--shard-size", lesson.shard_size,
                    "hsdp: ranks that share a copy; 0: a node's, or on one node N over its smallest prime", {.min = 0});
    std::string experiment = "none", virtual_trace;
    double link_mbit = 10000, link_latency_us = 20;
    line.add_choice("--experiment", experiment, "side experiments, each with its claims", experiment_names());
    line.add_option("--link-mbit", link_mbit, "of virtual time: Mbit/s of a rank's link", {.min = 0, .open_min = true});
    line.add_option("--link-latency", link_latency_us,
                    "of virtual time: microseconds of an exchange, which is half a collective", {.min = 0});
    line.add_option("--virtual-trace", virtual_trace, "where --experiment overlap writes its timelines", "PREFIX");
    for (const auto& s : sabotages()) line.add_sabotage(s.name, s.breaks);
    if (line.parse(argc, argv, world.is_root() ? stdout : nullptr) == ParseOutcome::kEnd) return 0;

    Options options = line.options();
    strategy.bucket_bytes = bucket_mb * 0x1p20;
    strategy.whole_model_unit = unit == "model";
    strategy.reduce_dtype = options.reduce_dtype;
    if (!options.sabotage.empty()) {
      lesson.sabotage = &find_sabotage(options.sabotage);
      lesson.sabotage->prepare(options, strategy, line);
      if (!options.verify) throw InputError("--sabotage needs the checks that --no-verify leaves out; give one of them");
      if (world.size() == 1) throw InputError("--sabotage needs several ranks; start it with mpiexec -n 2");
    }
    check_flags(line, strategy, experiment);
    configure_communication(world, options);
    (void)on_root(world, [&] {
      check_output_paths(options);
      Options timelines;
      if (!virtual_trace.empty()) timelines.trace = virtual_trace + ".json";
      check_output_paths(timelines);
      return std::string();
    });
    Mesh mesh(mesh_sizes(options, world.size()), world.everyone().ranks);

    Report report = data_parallel::run(options, lesson, world, mesh);
    set_value(report.config, "experiment", experiment);
    const bool as_it_is = !line.given("--link-mbit") && !line.given("--link-latency") && !line.given("--bucket-mb");
    Experiment given{options, lesson, link_mbit, link_latency_us, as_it_is, virtual_trace, world, mesh, report};
    run_experiments(experiment, given);
    return world.is_root() ? finish(report, options) : 0;
  });
}
