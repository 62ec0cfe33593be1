// Lesson 04: one model whose sequences are cut over several ranks, whose matrices may be, and replicas of it that share the
// batch.
#pragma once

#include "04_seq_context_parallel/costs.h"
#include "04_seq_context_parallel/lesson.h"
#include "common/app/options.h"
#include "common/comm/mesh.h"
#include "common/comm/world.h"
#include "common/train/trainer.h"
#include "common/verify/report.h"

namespace ref5d::seq_context_parallel {

// Applies what cuts a layer to a single device's settings, in their order: tensor, sequence, context. Returns the axis tp of
// the cut layers, null if nothing is cut along it.
std::shared_ptr<tensor_parallel::Axis> apply_cuts(TrainerOptions& settings, Mesh& mesh, const Lesson& lesson);
// And then data parallelism.
void apply(TrainerOptions& settings, Mesh& mesh, const Lesson& lesson, int shard_size);
// A rank's settings of a run over the mesh.
[[nodiscard]] TrainerOptions layout_settings(const Options& options, const Lesson& lesson, World& world, Mesh& mesh);
[[nodiscard]] Layout layout_of(const Options& options, const Lesson& lesson, const Mesh& mesh);

// Trains options.steps steps on all ranks of the mesh; with options.verify rank 0 trains the baseline first, on one device, and
// compares. All ranks call it; the report is rank 0's.
[[nodiscard]] Report run(const Options& options, const Lesson& lesson, World& world, Mesh& mesh);

}  // namespace ref5d::seq_context_parallel
