#include "02_ddp_zero/measure.h"

#include "02_ddp_zero/data_parallel.h"
#include "common/app/settings.h"

namespace ref5d::data_parallel {

Measured measure(const Options& options, const StrategyOptions& strategy, int shard_size, std::int64_t steps, World& world,
                 Mesh& mesh) {
  TrainerOptions settings = trainer_options(options, model_config(options), mesh["dp"].size());
  apply(settings, mesh, strategy, shard_size);
  return ref5d::measure("02_ddp_zero", options, settings, steps, world, mesh);
}

}  // namespace ref5d::data_parallel
