// What sequence and context parallelism cost, as formulas.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "03_tensor_parallel/costs.h"
#include "03_tensor_parallel/kept_activations.h"
#include "04_seq_context_parallel/context_axis.h"
#include "04_seq_context_parallel/sequence_parallel.h"
#include "common/app/options.h"

namespace ref5d::seq_context_parallel {

// What a run's costs follow from.
struct Layout {
  Options options;
  GptConfig model;
  std::string strategy;
  context_parallel::ContextParallelOptions context;
  bool sp = false;
  std::string sp_keep;
  int tp = 1, cp = 1, dp = 1;

  [[nodiscard]] context_parallel::SequenceLayout sequences() const {
    return context_parallel::make_layout(context.layout, model.seq, cp);
  }
  // Ranks along cp between which all tokens of a group meet, and how many such groups there are (context_axis.h).
  [[nodiscard]] int group_size() const;
  [[nodiscard]] int groups() const { return cp / group_size(); }
};

// What an axis sends in one step: operations of rank 0, and bytes of all ranks together.
[[nodiscard]] std::vector<PhaseTraffic> traffic_of_tp(const Layout& layout);
[[nodiscard]] std::vector<PhaseTraffic> traffic_of_cp(const Layout& layout);

// Bytes that all ranks of one cp axis send in one layer's attention for one micro-batch of the model's sequences. tp_rank:
// whose heads.
struct LayerTraffic {
  std::int64_t forward_calls = 0, forward = 0, backward_calls = 0, backward = 0;
};
[[nodiscard]] LayerTraffic layer_traffic(const Layout& layout, int tp_rank);

// What a layer keeps of a micro-batch on a rank. `whole`: what tensor parallelism alone does not divide.
[[nodiscard]] tensor_parallel::LayerActivations kept_of_layer(const Layout& layout, int cp_rank, int tp_rank);

// Flops of a rank's linear layers in a step.
[[nodiscard]] std::int64_t linear_flops(const Layout& layout, int cp_rank, int tp_rank);
// Flops of a rank's attention in a step on these rows, those of its replica: of the queries that it has then, which see what
// they see, for the heads that it has then. Together the ranks of a replica do what one device does.
[[nodiscard]] std::int64_t attention_flops(const Layout& layout, int cp_rank, int tp_rank, std::span<const Row> rows);

}  // namespace ref5d::seq_context_parallel
