// 05_pipeline: the layers cut over several ranks.
#include "05_pipeline/run.h"
#include "common/app/command_line.h"
#include "common/app/output.h"
#include "common/app/parallel_program.h"

using namespace ref5d;
using namespace ref5d::pipeline;

int main(int argc, char** argv) {
  return run_parallel_program("05_pipeline", argv, [&](World& world) {
    CommandLine line("05_pipeline", "x", Options());
    Lesson lesson;
    std::int64_t M = 0, v = 2;
    for (const char* a : {"dp", "pp", "cp", "tp"}) line.allow_axis(a);
    line.add_choice("--schedule", lesson.schedule.name, "", schedule_names());
    line.add_option("--micro-batches", M, "");
    line.add_option("--chunks", v, "");
    line.add_flag("--sp", lesson.stage.sp, "");
    line.add_flag("--poison", lesson.pipeline.links.poison, "");
    line.add_choice("--strategy", lesson.stage.strategy.kind, "", data_parallel::strategy_names());
    line.add_choice("--cp-kind", lesson.stage.context.kind, "", context_parallel::kind_names());
    if (line.parse(argc, argv, world.is_root() ? stdout : nullptr) == ParseOutcome::kEnd) return 0;
    Options options = line.options();
    if (options.axes.empty()) options.axes["pp"] = world.size();
    configure_communication(world, options);
    Mesh mesh(mesh_sizes(options, world.size()), world.everyone().ranks);
    lesson.schedule.ranks = static_cast<int>(mesh.size("pp"));
    lesson.schedule.micro_batches = static_cast<int>(M == 0 ? 2 * lesson.schedule.ranks : M);
    lesson.schedule.chunks = static_cast<int>(v);
    Report report = pipeline::run(options, lesson, world, mesh);
    return world.is_root() ? finish(report, options) : 0;
  });
}
