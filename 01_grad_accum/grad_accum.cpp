#include "01_grad_accum/grad_accum.h"

#include <fmt/core.h>

#include <algorithm>

#include "common/app/baseline.h"
#include "common/app/output.h"
#include "common/app/program.h"
#include "common/app/sabotage.h"
#include "common/app/settings.h"
#include "common/app/version.h"
#include "common/device/device.h"
#include "common/train/baselines.h"
#include "common/train/checkpoint.h"
#include "common/train/generate.h"
#include "common/verify/run_checks.h"

namespace ref5d::grad_accum {

namespace {

RunRecord run_micro_batches(const Options& options, const TrainerOptions& settings, const Dataset& data, std::int64_t compared,
                            std::string& sample) {
  Trainer trainer(settings, data);
  if (!options.resume.empty()) resume(trainer, options.resume);
  RunOutputs outputs(trainer, data, options, settings.global_batch);
  const StepPrinter printer(options.steps, options.quiet);
  RunRecord record = record_run(trainer, options.steps, compared, [&](std::int64_t step, const StepResult& r) {
    outputs.after_step(step, r);
    printer.step(step, r);
  });
  outputs.finish(record);
  sample = outputs.sample();
  return record;
}

// The activations of M micro-batches, one after the other, need an Mth of the big batch's; the price is a gradient that
// outlives the micro-batch.
void claim_memory(Verdict& verdict, const RunRecord& run, const RunRecord& big, const Options& options) {
  const bool comparable = options.recompute == "none" && options.attention == "flash";
  if (comparable) {
    verdict.claim(
        make_claim(fmt::format("activation peak: the big batch's / {}", options.grad_accum),
                   static_cast<double>(big.peak(MemoryCategory::kActivations)) / static_cast<double>(options.grad_accum),
                   static_cast<double>(run.peak(MemoryCategory::kActivations)), 0.02, "bytes"));
  }
  std::int64_t left = 0;
  for (const auto& [category, bytes] : run.current_bytes) left += category == MemoryCategory::kActivations ? bytes : 0;
  verdict.claim(make_claim("activations held after the last micro-batch", 0, static_cast<double>(left), 0, "bytes"));
}

// Bytes per parameter by category, exactly.
void claim_bytes_per_parameter(Verdict& verdict, const RunRecord& run, const Options& options, const GptConfig& model) {
  const auto n = static_cast<double>(model.parameter_count());
  const bool bf16 = options.dtype == Dtype::kBf16;
  const double size = static_cast<double>(dtype_size(options.dtype)),
               wide = static_cast<double>(dtype_size(accumulator_of(options.dtype)));
  const bool fused = bf16 && options.fp32_grads && options.fused_grad_accum;
  const bool separate = bf16 && options.fp32_grads && !fused;
  const std::pair<MemoryCategory, double> expected[] = {
      {MemoryCategory::kParameters, size},
      {MemoryCategory::kMaster, bf16 ? 4.0 : 0.0},
      {MemoryCategory::kGradients, fused ? 0.0 : size},
      {MemoryCategory::kGradientAccumulation, separate || fused ? 4.0 : 0.0},
      {MemoryCategory::kOptimizer, 2 * wide},
  };
  double total = 0, measured_total = 0;
  for (const auto& [category, bytes] : expected) {
    const double measured = static_cast<double>(run.peak(category)) / n;
    if (bytes > 0 || measured > 0)
      verdict.claim(
          make_claim(fmt::format("bytes per parameter: {}", memory_category_name(category)), bytes, measured, 0, "bytes"));
    total += bytes;
    measured_total += measured;
  }
  verdict.claim(make_claim("bytes per parameter in all", total, measured_total, 0, "bytes"));
}

}  // namespace

Report run(const Options& options, const Sabotage* sabotage) {
  const GptConfig model = model_config(options);
  const Dataset data(dataset_options(options, model));
  TrainerOptions settings = trainer_options(options, model);
  if (sabotage != nullptr) sabotage->plant(settings);
  if (!options.quiet) {
    fmt::print("{}\n{} parameters, {} sequences of {} per step as {} micro-batches of {}, {}\n", data.description(),
               model.parameter_count(), settings.global_batch, model.seq, options.grad_accum, options.micro_batch,
               dtype_name(options.dtype));
    if (sabotage != nullptr) fmt::print("{}", sabotage_line(options, sabotage->breaks));
  }

  Report report = new_report("01_grad_accum", options, model);
  Verdict verdict;
  RunRecord record;
  if (options.verify) {
    const Baselines single =
        run_baselines(options.dtype, std::min(options.steps, options.verify_steps), [&](Dtype dtype, std::int64_t steps) {
          return train_baseline(options, trainer_options(options, model), data, dtype, steps);
        });
    if (!single.why_fewer.empty() && !options.quiet) fmt::print("{}\n", single.why_fewer);
    const bool fp64 = options.dtype == Dtype::kFp64;
    record = run_micro_batches(options, settings, data, single.steps, report.sample);
    check_run(verdict, options.dtype, record.values, single.truth.values, fp64 ? nullptr : &single.own.values);
    report.baseline_loss = single.truth.values.losses;
    claim_memory(verdict, record, fp64 ? single.truth : single.own, options);
  } else {
    record = run_micro_batches(options, settings, data, 0, report.sample);
  }
  claim_bytes_per_parameter(verdict, record, options, model);
  fill_report(report, options, model, record, verdict);
  return report;
}

}  // namespace ref5d::grad_accum
