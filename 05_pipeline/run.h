// Lesson 05: one model whose layers are on several ranks, through which micro-batches pass by a schedule.
#pragma once

#include <memory>

#include "05_pipeline/lesson.h"
#include "common/app/options.h"
#include "common/comm/mesh.h"
#include "common/comm/world.h"
#include "common/train/trainer.h"
#include "common/verify/report.h"

namespace ref5d::pipeline {

// The same options with as many micro-batches in a step as the schedule runs: --micro-batches times --grad-accum.
[[nodiscard]] Options with_all_micro_batches(const Options& options, const Plan& plan);

// Applies every dimension of the mesh to a single device's settings, in their order: tensor, sequence, context, pipeline, data.
std::shared_ptr<Pipeline> apply(TrainerOptions& settings, Mesh& mesh, const std::shared_ptr<const Plan>& plan,
                                const Lesson& lesson, int shard_size);

// One rank's part of a run over the mesh, which is told of what the schedule needs.
struct LayoutPlan {
  std::shared_ptr<const Plan> plan;
  Options options;                     // with_all_micro_batches
  TrainerOptions single, settings;     // of one device, and of this rank
  std::shared_ptr<Pipeline> pipeline;  // in `settings`
  int shard_size;                      // ranks over which state is sharded
};
[[nodiscard]] LayoutPlan plan_layout(const Options& options, const Lesson& lesson, World& world, Mesh& mesh);

// Trains options.steps steps on all ranks of the mesh; with options.verify rank 0 trains the baseline first, on one device, and
// compares. All ranks call it; the report is rank 0's.
[[nodiscard]] Report run(const Options& options, const Lesson& lesson, World& world, Mesh& mesh);

}  // namespace ref5d::pipeline
