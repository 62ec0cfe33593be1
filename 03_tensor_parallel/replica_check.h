// Whether ranks that hold the same weights, or some of the same, hold them in the same bits (P12). Beside copies along dp there
// are those along tp: norms, biases of row-parallel layers, kv heads that several ranks need. Buffers are on all ranks.
#pragma once

#include <set>
#include <string>

#include "02_ddp_zero/strategy.h"
#include "common/comm/mesh.h"
#include "common/train/trainer.h"

namespace ref5d::tensor_parallel {

class ReplicaCheck {
 public:
  ReplicaCheck(const GptConfig& model, Mesh& mesh, const data_parallel::StrategyOptions& strategy, int shard_size);
  // Another parameter that several ranks hold: a tied weight of two pipeline stages.
  void add(const std::string& parameter) { shared_.insert(parameter); }
  // All ranks of the mesh call it. False on every rank that finds a difference: those that hold a copy that differs along dp,
  // and the mesh's first rank for one along tp.
  [[nodiscard]] bool operator()(Trainer& trainer) const;

 private:
  // Whether the ranks of the group hold the same weights, of experts or of all others.
  [[nodiscard]] static bool agree(const Group& copies, Trainer& trainer, bool experts);

  Group everyone_, copies_, copies_of_experts_;
  std::set<std::string> shared_;
};

}  // namespace ref5d::tensor_parallel
