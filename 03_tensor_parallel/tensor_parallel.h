// Tensor parallelism applied to a model: every matrix cut over the ranks of an axis.
//
//             x                       whole on every rank
//             |
//            norm                     whole, computed by every rank
//             | copy                  (backward: all-reduce)
//      q | k | v   column-parallel    a rank's heads
//         attention                   each head for itself
//           o      row-parallel       a term of the sum
//             | reduce                all-reduce
//        x +  |                       whole again
//            norm
//             | copy                  (backward: all-reduce)
//      gate | up   column-parallel    a rank's columns
//        silu(gate) * up              each column for itself
//          down    row-parallel       a term of the sum
//             | reduce                all-reduce
//        x +  |                       whole again
//
// Two all-reduces of [T, H] a layer in forward, and two in backward.
#pragma once

#include <memory>

#include "03_tensor_parallel/axis.h"
#include "common/model/gpt.h"
#include "common/train/trainer.h"

namespace ref5d::tensor_parallel {

// Leaves this rank its columns of an MLP that has no storage yet. gate is null in a GELU's.
void cut_mlp(std::unique_ptr<Linear>& gate, std::unique_ptr<Linear>& up, std::unique_ptr<Linear>& down, int ranks, int rank,
             const Faults& faults = {});

// Gives every parameter of a model without storage the placement that it has on this rank of so many, and swaps its linear
// layers; all but mixtures of experts, which lesson 06 cuts. InputError if the model cannot be cut so.
void cut(Gpt& gpt, int ranks, int rank, const Faults& faults = {});

// Cuts the model and puts the axis's communication where it belongs.
void apply(Gpt& gpt, const std::shared_ptr<Axis>& axis);

// Turns the settings of a run into those of this rank of the mesh's tp axis; the mesh must outlive the trainer. To be called
// before data_parallel::apply, which shards what is left. Returns what the run's cut parts share.
std::shared_ptr<Axis> apply(TrainerOptions& settings, Mesh& mesh, const TensorParallelOptions& options);

}  // namespace ref5d::tensor_parallel
