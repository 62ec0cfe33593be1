#include "02_ddp_zero/flags.h"

#include <fmt/format.h>

#include <algorithm>

#include "02_ddp_zero/experiments.h"
#include "common/device/error.h"

namespace ref5d::data_parallel {

void declare(CommandLine& line, Flags& flags) {
  StrategyOptions& s = flags.lesson.strategy;
  line.allow_axis("dp");
  line.group("This lesson");
  line.add_choice("--strategy", s.kind, "who holds what, and when it travels", strategy_names());
  line.add_option("--bucket-mb", flags.bucket_mb, "ddp, zero1: MiB of gradients that are reduced together", {.min = 0});
  line.add_switch("--overlap", s.overlap, "ddp, zero1: reduce while backward goes on");
  line.add_flag("--sync-every-micro-batch", s.sync_every_micro_batch, "ddp, zero1: what forgetting no_sync costs");
  line.add_flag("--keep-full-gradients", s.keep_full_gradients,
                "zero2: sum micro-batches first, reduce once, in buckets as zero1 does");
  line.add_flag("--all-reduce-gradients", s.all_reduce_gradients, "zero1: what missing the reduce-scatter costs");
  line.add_choice("--unit", flags.unit, "zero2, zero3, hsdp: what is gathered and reduced at a time", {"block", "model"});
  line.add_switch("--prefetch", s.prefetch, "zero3, hsdp: gather the next unit during this one's work");
  line.add_option("--shard-size", flags.lesson.shard_size,
                  "hsdp: ranks that share a copy; 0: a node's, or on one node N over its smallest prime", {.min = 0});
  line.add_choice("--experiment", flags.experiment, "side experiments, each with its claims", experiment_names());
  line.add_option("--link-mbit", flags.link_mbit, "of virtual time: Mbit/s of a rank's link", {.min = 0, .open_min = true});
  line.add_option("--link-latency", flags.link_latency_us,
                  "of virtual time: microseconds of an exchange, which is half a collective", {.min = 0});
  line.add_option("--virtual-trace", flags.virtual_trace, "where --experiment overlap writes its timelines", "PREFIX");
  for (const auto& sabotage : sabotages()) line.add_sabotage(sabotage.name, sabotage.breaks);
}

namespace {

using Names = std::vector<std::string>;
bool has(const Names& names, const std::string& name) { return std::find(names.begin(), names.end(), name) != names.end(); }

// A flag, and what must be chosen for it to mean something.
struct Scope {
  const char* flag;
  Names strategies, experiments;
};
const Scope kScopes[] = {{"--bucket-mb", {"ddp", "zero1", "zero2 --keep-full-gradients"}, {}},
                         {"--overlap", {"ddp", "zero1", "zero2 --keep-full-gradients"}, {}},
                         {"--sync-every-micro-batch", {"ddp", "zero1"}, {}},
                         {"--keep-full-gradients", {"zero2", "zero2 --keep-full-gradients"}, {}},
                         {"--all-reduce-gradients", {"zero1"}, {}},
                         {"--unit", {"zero2", "zero3", "hsdp"}, {}},
                         {"--prefetch", {"zero3", "hsdp"}, {}},
                         {"--shard-size", {"hsdp"}, {"compare", "overlap"}},
                         {"--link-mbit", {}, {"buckets", "overlap"}},
                         {"--link-latency", {}, {"buckets", "overlap"}},
                         {"--virtual-trace", {}, {"overlap"}}};

void check_scope(const CommandLine& line, const Scope& scope, const std::string& kind, const std::string& experiment) {
  if (!line.given(scope.flag) || has(scope.strategies, kind) || has(scope.experiments, experiment)) return;
  if (experiment == "all" && !scope.experiments.empty()) return;
  Names places;
  if (!scope.strategies.empty()) places.push_back("--strategy " + join(scope.strategies, ", "));
  if (!scope.experiments.empty()) places.push_back("--experiment " + join(scope.experiments, ", "));
  const std::string here = scope.strategies.empty() ? "--experiment " + experiment : "--strategy " + kind;
  throw InputError(
      fmt::format("{} means nothing with {}; it is for {}", line.as_given(scope.flag), here, join(places, " or ")));
}

}  // namespace

void settle(const CommandLine& line, Options& options, Flags& flags, int ranks) {
  StrategyOptions& s = flags.lesson.strategy;
  s.bucket_bytes = flags.bucket_mb * 0x1p20;
  s.whole_model_unit = flags.unit == "model";
  s.reduce_dtype = options.reduce_dtype;
  if (!options.sabotage.empty()) {
    flags.lesson.sabotage = &find_sabotage(options.sabotage);
    flags.lesson.sabotage->prepare(options, s, line);
    if (!options.verify) throw InputError("--sabotage needs the checks that --no-verify leaves out; give one of them");
    if (ranks == 1) throw InputError("--sabotage needs several ranks; start it with mpiexec -n 2");
  }
  // What zero2 does with whole gradients is what zero1 does.
  const std::string kind = s.kind == "zero2" && s.keep_full_gradients ? "zero2 --keep-full-gradients" : s.kind;
  for (const Scope& scope : kScopes) check_scope(line, scope, kind, flags.experiment);
}

}  // namespace ref5d::data_parallel
