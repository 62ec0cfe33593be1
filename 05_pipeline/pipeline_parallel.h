// Pipeline parallelism applied to a model: every rank has some of its layers.
//
//   Gpt::keep leaves a rank the parameters of its stages. The passes of micro-batches are a schedule's (runtime.h) in place of
//   one after the other. Everything that adds up over the model adds up over pp as well: the gradient norm, so that all stages
//   clip by the same factor, and the loss, which the last stage alone computes.
#pragma once

#include <memory>

#include "05_pipeline/runtime.h"
#include "common/train/trainer.h"

namespace ref5d::pipeline {

// Leaves the stages of rank `rank` of the plan, of a model that tensor parallelism may have cut already.
void cut(Gpt& gpt, const Plan& plan, int rank, const Faults& faults = {});

// Turns the settings of a run into those of this rank of the mesh's pp axis; plan and mesh must outlive the trainer. After
// tensor, sequence and context parallelism, and before data_parallel::apply, which is given the result as its passes.
[[nodiscard]] std::shared_ptr<Pipeline> apply(TrainerOptions& settings, Mesh& mesh, const std::shared_ptr<const Plan>& plan,
                                              const PipelineOptions& options);

}  // namespace ref5d::pipeline
