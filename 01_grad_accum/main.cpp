// 01_grad_accum: gradient accumulation, and what one device can do before a second one is needed.
#include "01_grad_accum/experiments.h"
#include "01_grad_accum/grad_accum.h"
#include "common/app/command_line.h"
#include "common/app/output.h"
#include "common/app/program.h"
#include "common/device/device.h"
#include "common/device/error.h"

using namespace ref5d;

int main(int argc, char** argv) {
  return run_program("01_grad_accum", argv, [&] {
    Options defaults;
    defaults.grad_accum = 4;
    CommandLine line("01_grad_accum", "Trains the tiny GPT on M micro-batches and checks that they equal one big batch.",
                     defaults);
    std::string experiment = "none";
    line.group("This lesson");
    line.add_choice("--experiment", experiment, "side experiments, each with its claims", grad_accum::experiment_names());
    for (const auto& s : grad_accum::sabotages()) line.add_sabotage(s.name, s.breaks);
    if (line.parse(argc, argv) == ParseOutcome::kEnd) return 0;
    require_one_process("01_grad_accum");
    Device::select(0);

    Options options = line.options();
    const grad_accum::Sabotage* sabotage = options.sabotage.empty() ? nullptr : &grad_accum::find_sabotage(options.sabotage);
    if (sabotage != nullptr) sabotage->prepare(options, line);
    if (sabotage != nullptr && !options.verify)
      throw InputError("--sabotage needs the checks that --no-verify leaves out; give one of them");
    check_output_paths(options);

    Report report = grad_accum::run(options, sabotage);
    set_value(report.config, "experiment", experiment);
    grad_accum::run_experiments(experiment, options, report);
    return finish(report, options);
  });
}
