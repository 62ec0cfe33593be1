// Expert parallelism applied to a model: every rank of an axis has some of the experts of each layer.
//
//   dp = edp x ep: the ranks that share out the experts are data-parallel replicas of their own, each with its own samples.
//   What is not an expert is on all of them. Tokens travel to the ranks of their experts and the results back; so the gradient
//   of an expert has all ep ranks' tokens in it already, and is summed over edp (x cp) alone, divided by nothing (pitfall P47).
//
//            ep 0             ep 1                  gradients summed over
//   edp 0    A  e0 e1         A  e2 e3              A: all four ranks (dp)
//   edp 1    A  e0 e1         A  e2 e3              e0 .. e3: the two of a column (edp)
//
// Along tp experts are whole or cut:
//   whole        a rank has every expert of its place along ep, and computes its share of the rows: no communication inside of
//                experts, tp times their memory
//   --expert-tp  a rank has some columns of each, and computes all rows: each rank along tp sends all tokens along ep, and the
//                partial results are summed where a dense MLP's are
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "04_seq_context_parallel/sequence_parallel.h"
#include "06_expert_parallel/expert_axis.h"
#include "common/model/moe_mlp.h"
#include "common/train/trainer.h"

namespace ref5d::expert_parallel {

// What is along tp: null and nullopt where nothing is cut.
struct TensorAxis {
  std::shared_ptr<tensor_parallel::Axis> axis;
  std::optional<sequence_parallel::SequenceParallelOptions> sequence;
  std::int64_t tokens_per_sequence = 0;  // on this rank, fewer than the model's where context parallelism cuts sequences
};

// Leaves this rank its experts, and its columns of them, of a model without storage.
void cut(Gpt& gpt, const Range& experts, bool distributed, bool expert_tp, int tp, int tp_rank);

// Turns the settings of a run into those of this rank of the mesh's ep axis; the mesh must outlive the trainer. After tensor,
// sequence and context parallelism; before pipeline::apply and data_parallel::apply. Returns what the layers share. InputError
// if a rank would have no expert, or no column of one that is cut.
std::shared_ptr<ExpertAxis> apply(TrainerOptions& settings, Mesh& mesh, const ExpertParallelOptions& options,
                                  const TensorAxis& tensor);

}  // namespace ref5d::expert_parallel
