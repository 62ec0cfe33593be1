// Lesson 03: one model whose matrices are cut over several ranks, beside replicas of it that share the batch.
#pragma once

#include "02_ddp_zero/strategy.h"
#include "03_tensor_parallel/axis.h"
#include "03_tensor_parallel/sabotage.h"
#include "common/app/options.h"
#include "common/train/trainer.h"
#include "common/verify/report.h"

namespace ref5d::tensor_parallel {

struct Lesson {
  TensorParallelOptions tensor;
  data_parallel::StrategyOptions strategy;  // of the replicas
  std::int64_t shard_size = 0;              // of hsdp; 0: chosen
  const Sabotage* sabotage = nullptr;
};

// A rank's settings of a run over the mesh.
[[nodiscard]] TrainerOptions layout_settings(const Options& options, const Lesson& lesson, World& world, Mesh& mesh);

// Trains options.steps steps on all ranks of the mesh; with options.verify rank 0 trains the baseline first, on one device, and
// compares. All ranks call it; the report is rank 0's.
[[nodiscard]] Report run(const Options& options, const Lesson& lesson, World& world, Mesh& mesh);

}  // namespace ref5d::tensor_parallel
