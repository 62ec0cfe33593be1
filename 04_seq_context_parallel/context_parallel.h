// Context parallelism applied to a model: every rank has some tokens of each sequence, everywhere.
//
//   Norms, projections, the MLP and the loss compute each token for itself, so they are the model's own, on fewer tokens. Only
//   in attention do tokens meet: there a core takes LocalAttention's place (ring_attention.h, all_gather_attention.h,
//   ulysses_attention.h).
//
// All weights are whole on every rank, and each rank has the gradient of its own tokens' loss: they are summed over dp x cp, as
// if the ranks were so many more replicas. The loss is divided once, by the labels of the whole batch (pitfall P04).
#pragma once

#include "04_seq_context_parallel/context_axis.h"
#include "common/model/gpt.h"
#include "common/train/trainer.h"

namespace ref5d::context_parallel {

// Swaps the attention core of every layer; parameters stay as they are.
void apply(Gpt& gpt, const std::shared_ptr<ContextAxis>& axis);

// Turns the settings of a run into those of this rank of the mesh's cp axis; the mesh must outlive the trainer. After tensor
// and sequence parallelism, and before data_parallel::apply, which sums over dp x cp. InputError if sequences or heads cannot
// be cut so.
void apply(TrainerOptions& settings, Mesh& mesh, const ContextParallelOptions& options);

// Tokens of each sequence on this rank.
[[nodiscard]] std::int64_t tokens_here(Mesh& mesh, const ContextParallelOptions& options, std::int64_t length);

}  // namespace ref5d::context_parallel
