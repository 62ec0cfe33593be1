#include "common/app/baseline.h"

#include <fmt/format.h>

#include "common/app/program.h"
#include "common/train/checkpoint.h"

namespace ref5d {

RunRecord train_baseline(const Options& options, const TrainerOptions& settings, const Dataset& data, Dtype dtype,
                         std::int64_t steps) {
  TrainerOptions big = settings;
  big.storage = {};
  big.storage.dtype = dtype;
  big.storage.seed = settings.storage.seed;
  // Routers' losses and experts' capacity are of a micro-batch: so those of a model with experts stay as they are.
  if (!settings.model.has_experts()) big.micro_batch = big.global_batch;
  big.recompute = Recompute::kNone;
  big.gemm = GemmKind::kBlas;
  big.attention = AttentionKind::kFlash;
  Trainer trainer(big, data);
  if (!options.resume.empty()) resume(trainer, options.resume);
  const StepPrinter printer(steps, options.quiet);
  RunRecord record = record_run(trainer, steps, steps, [&](std::int64_t step, const StepResult& r) {
    printer.progress(fmt::format("baseline in {}", dtype_name(dtype)), step, r.ms);
  });
  printer.done();
  return record;
}

}  // namespace ref5d
