// 04_seq_context_parallel: every sequence cut over several ranks.
#include "04_seq_context_parallel/experiments.h"
#include "04_seq_context_parallel/flags.h"
#include "common/app/output.h"
#include "common/app/parallel_program.h"

using namespace ref5d;
using namespace ref5d::seq_context_parallel;

int main(int argc, char** argv) {
  return run_parallel_program("04_seq_context_parallel", argv, [&](World& world) {
    CommandLine line("04_seq_context_parallel",
                     "Trains the tiny GPT with every sequence cut over several ranks, and checks that they equal one. "
                     "Without --dp, --cp and --tp all ranks are along cp, with --sp along tp.",
                     Options());
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

    Report report = seq_context_parallel::run(options, flags.lesson, world, mesh);
    set_value(report.config, "experiment", flags.experiment);
    const bool default_link = !line.given("--link-mbit") && !line.given("--link-latency");
    Experiment given{
        options, flags.lesson, {flags.link_latency_us, flags.link_mbit / 8}, default_link, flags.virtual_trace, world,
        mesh,    report};
    run_experiments(flags.experiment, given);
    return world.is_root() ? finish(report, options) : 0;
  });
}
