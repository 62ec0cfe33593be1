// 05_pipeline: a model's layers cut over several ranks, and the schedules by which micro-batches pass through them.
#include <fmt/core.h>
#include <unistd.h>

#include "05_pipeline/drawing.h"
#include "05_pipeline/experiments.h"
#include "05_pipeline/flags.h"
#include "05_pipeline/schedule_csv.h"
#include "common/app/output.h"
#include "common/app/parallel_program.h"

using namespace ref5d;
using namespace ref5d::pipeline;

int main(int argc, char** argv) {
  return run_parallel_program("05_pipeline", argv, [&](World& world) {
    CommandLine line("05_pipeline",
                     "Trains the tiny GPT with its layers cut over several ranks, by any schedule from GPipe to DualPipe, and "
                     "checks that they equal one. Without --pp, --dp, --cp and --tp all ranks are along pp.",
                     Options());
    Flags flags;
    declare(line, flags);
    if (line.parse(argc, argv, world.is_root() ? stdout : nullptr) == ParseOutcome::kEnd) return 0;
    Options options = line.options();
    settle_schedule(line, options, flags, world.size());
    if (!flags.print_schedule.empty()) {
      const Schedule schedule = make_schedule(flags.lesson.schedule);
      const bool csv = flags.print_schedule == "csv";
      if (world.is_root()) fmt::print("{}", csv ? to_csv(schedule) : draw(schedule, isatty(STDOUT_FILENO) != 0));
      return 0;
    }
    settle(line, options, flags, world.size());
    configure_communication(world, options);
    (void)on_root(world, [&] {
      check_output_paths(options, virtual_traces(flags.experiment, flags.virtual_trace));
      return std::string();
    });
    Mesh mesh(mesh_sizes(options, world.size()), world.everyone().ranks);

    Report report = pipeline::run(options, flags.lesson, world, mesh);
    set_value(report.config, "experiment", flags.experiment);
    Experiment given{options, flags.lesson, {flags.link_latency_us, flags.link_mbit / 8}, flags.virtual_trace, world,
                     mesh,    report};
    run_experiments(flags.experiment, given);
    return world.is_root() ? finish(report, options) : 0;
  });
}
