// Help for testing tensor parallelism: meshes of tp x dp, and runs on them beside a single device's.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "03_tensor_parallel/tensor_parallel.h"
#include "common/train/replicas.h"
#include "tests/support/data_parallel_testing.h"

namespace ref5d::testing {

using tensor_parallel::TensorParallelOptions;

inline std::optional<Mesh> tp_slice(int tp, int dp = 1) { return world_slice({.edp = dp, .tp = tp}); }

inline TrainerOptions cut_options(Mesh& mesh, TrainerOptions o, const StrategyCase& s, const TensorParallelOptions& tensor) {
  (void)tensor_parallel::apply(o, mesh, tensor);
  data_parallel::apply(o, mesh, s.options, s.shard_size);
  return o;
}

// On the ranks of the mesh; tensors end up on its rank 0.
inline RunValues train_cut(Mesh& mesh, const TrainerOptions& o, const StrategyCase& s, const Dataset& data, std::int64_t steps,
                           const TensorParallelOptions& tensor = {}, const OnStep& on_step = {}) {
  Trainer trainer(cut_options(mesh, o, s, tensor), data);
  return values_of_steps(trainer, steps, o.storage.dtype != Dtype::kFp64, on_step);
}

// 2 channels for each head, an odd vocabulary, columns of the MLP that few numbers divide.
inline GptConfig with_heads(std::int64_t heads, std::int64_t kv_heads) {
  GptConfig c = small();
  c.heads = heads;
  c.kv_heads = kv_heads;
  c.hidden = 2 * heads;
  c.qk_norm = kv_heads % 2 == 1;
  return c;
}

}  // namespace ref5d::testing
