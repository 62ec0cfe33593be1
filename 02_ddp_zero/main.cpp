// 02_ddp_zero: data parallelism, from an all-reduce after backward to fully sharded state.
#include "02_ddp_zero/experiments.h"
#include "02_ddp_zero/flags.h"
#include "common/app/output.h"
#include "common/app/parallel_program.h"

using namespace ref5d;
using namespace ref5d::data_parallel;

int main(int argc, char** argv) {
  return run_parallel_program("02_ddp_zero", argv, [&](World& world) {
    CommandLine line("02_ddp_zero",
                     "Trains the tiny GPT on several ranks that share the batch, and checks that they equal one.", Options());
    Flags flags;
    declare(line, flags);
    if (line.parse(argc, argv, world.is_root() ? stdout : nullptr) == ParseOutcome::kEnd) return 0;
    Options options = line.options();
    settle(line, options, flags, world.size());
    configure_communication(world, options);
    (void)on_root(world, [&] {
      check_output_paths(options, virtual_traces(flags.virtual_trace));
      return std::string();
    });
    Mesh mesh(mesh_sizes(options, world.size()), world.everyone().ranks);

    Report report = data_parallel::run(options, flags.lesson, world, mesh);
    set_value(report.config, "experiment", flags.experiment);
    const bool as_it_is = !line.given("--link-mbit") && !line.given("--link-latency") && !line.given("--bucket-mb");
    Experiment given{options, flags.lesson, flags.link_mbit, flags.link_latency_us, as_it_is, flags.virtual_trace,
                     world,   mesh,         report};
    run_experiments(flags.experiment, given);
    return world.is_root() ? finish(report, options) : 0;
  });
}
