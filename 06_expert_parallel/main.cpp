// 06_expert_parallel: a mixture of experts whose experts are on several ranks, and the ways of tokens to them and back.
#include <fmt/core.h>

#include "06_expert_parallel/experiments.h"
#include "06_expert_parallel/flags.h"
#include "common/app/output.h"
#include "common/app/parallel_program.h"

using namespace ref5d;
using namespace ref5d::expert_parallel;

int main(int argc, char** argv) {
  return run_parallel_program("06_expert_parallel", argv, [&](World& world) {
    Options defaults;
    defaults.model = "tiny-mixtral";
    CommandLine line("06_expert_parallel",
                     "Trains the tiny GPT with a mixture of experts that are shared out over several ranks, and checks that "
                     "they equal one. Without --ep, --dp, --pp, --cp and --tp all ranks are along ep.",
                     defaults);
    Flags flags;
    declare(line, flags);
    if (line.parse(argc, argv, world.is_root() ? stdout : nullptr) == ParseOutcome::kEnd) return 0;
    Options options = line.options();
    settle(line, options, flags, world.size());
    configure_communication(world, options);
    (void)on_root(world, [&] {
      check_output_paths(options, virtual_traces(flags.experiment, flags.virtual_trace));
      return std::string();
    });
    Mesh mesh(mesh_sizes(options, world.size()), world.everyone().ranks);
    Report report = expert_parallel::run(options, flags.lesson, world, mesh);
    set_value(report.config, "experiment", flags.experiment);
    Experiment given{options, flags.lesson, {flags.link_latency_us, flags.link_mbit / 8}, flags.virtual_trace, world,
                     mesh,    report};
    run_experiments(flags.experiment, given);
    return world.is_root() ? finish(report, options) : 0;
  });
}
