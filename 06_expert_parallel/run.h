// Lesson 06: one model whose experts are on several ranks, with all that lessons 02 to 05 do beside it.
#pragma once

#include <memory>

#include "05_pipeline/pipeline_parallel.h"
#include "06_expert_parallel/lesson.h"
#include "common/app/options.h"
#include "common/comm/mesh.h"
#include "common/comm/world.h"
#include "common/train/trainer.h"
#include "common/verify/report.h"

namespace ref5d::expert_parallel {

// One rank's part of a run over the mesh.
struct LayoutPlan {
  Options options;                             // with all micro-batches of a step
  std::shared_ptr<const pipeline::Plan> plan;  // null where one rank has all layers
  TrainerOptions single, settings;             // of one device, and of this rank
  int shard_size = 1;                          // ranks over which state is sharded
};
[[nodiscard]] LayoutPlan plan_layout(const Options& options, const Lesson& lesson, World& world, Mesh& mesh);

// Trains options.steps steps on all ranks of the mesh; with options.verify rank 0 trains the baseline first, on one device, and
// compares. All ranks call it; the report is rank 0's.
[[nodiscard]] Report run(const Options& options, const Lesson& lesson, World& world, Mesh& mesh);

}  // namespace ref5d::expert_parallel
