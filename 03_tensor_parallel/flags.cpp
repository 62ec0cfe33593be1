#include "03_tensor_parallel/flags.h"

#include <fmt/format.h>

#include "03_tensor_parallel/experiments.h"
#include "common/app/flag_scope.h"
#include "common/app/parallel_program.h"
#include "common/device/error.h"

namespace ref5d::tensor_parallel {

void declare(CommandLine& line, Flags& flags) {
  line.allow_axis("dp");
  line.allow_axis("tp");
  line.group("This lesson");
  line.add_switch("--overlap", flags.lesson.tensor.overlap, "sum input gradients while weight gradients are computed");
  line.add_choice("--strategy", flags.lesson.strategy.kind, "of the replicas: who holds what (lesson 02)",
                  data_parallel::strategy_names());
  line.add_option("--shard-size", flags.lesson.shard_size, "hsdp: ranks that share a copy; 0: chosen as in lesson 02",
                  {.min = 0});
  line.add_choice("--experiment", flags.experiment, "side experiments, each with its claims", experiment_names());
  line.add_option("--link-mbit", flags.link_mbit, "of virtual time: Mbit/s of a rank's link", {.min = 0, .open_min = true});
  line.add_option("--link-latency", flags.link_latency_us,
                  "of virtual time: microseconds of an exchange, which is half an all-reduce", {.min = 0});
  line.add_option("--virtual-trace", flags.virtual_trace, "where --experiment overlap writes its timelines", "PREFIX");
  for (const auto& sabotage : sabotages()) line.add_sabotage(sabotage.name, sabotage.breaks);
}

void settle(const CommandLine& line, Options& options, Flags& flags, int ranks) {
  if (options.axes.empty()) options.axes["tp"] = ranks;
  const auto tp = static_cast<int>(mesh_sizes(options, ranks).tp);
  flags.lesson.strategy.reduce_dtype = options.reduce_dtype;
  if (!options.sabotage.empty()) {
    if (!options.verify) throw InputError("--sabotage needs the checks that --no-verify leaves out; give one of them");
    if (tp == 1) throw InputError("--sabotage needs several ranks along tp; start mpiexec -n 2 and leave --dp and --tp out");
    flags.lesson.sabotage = &find_sabotage(options.sabotage);
    flags.lesson.sabotage->prepare(options, line, tp);
  }
  const std::string experiment = "--experiment " + flags.experiment;
  const bool overlap = flags.experiment == "overlap" || flags.experiment == "all";
  expect_scope(line, "--link-mbit", experiment, overlap, "--experiment overlap");
  expect_scope(line, "--link-latency", experiment, overlap, "--experiment overlap");
  expect_scope(line, "--virtual-trace", experiment, overlap, "--experiment overlap");
  expect_scope(line, "--shard-size", "--strategy " + flags.lesson.strategy.kind, flags.lesson.strategy.kind == "hsdp",
               "--strategy hsdp");
}

}  // namespace ref5d::tensor_parallel
