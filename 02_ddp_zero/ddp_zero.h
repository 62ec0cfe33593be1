// Lesson 02: one model on several ranks that share the batch, and ever less of what each of them holds.
#pragma once

#include "02_ddp_zero/claims.h"
#include "02_ddp_zero/sabotage.h"
#include "02_ddp_zero/strategy.h"
#include "common/app/options.h"
#include "common/comm/mesh.h"
#include "common/verify/report.h"

namespace ref5d::data_parallel {

struct Lesson {
  StrategyOptions strategy;
  std::int64_t shard_size = 0;  // of hsdp; 0: chosen
  const Sabotage* sabotage = nullptr;
};

// Whether every group of `size` of these ranks, from the first on, is on one node.
[[nodiscard]] bool groups_are_within_nodes(const World& world, const std::vector<int>& ranks, int size);

// The ranks that share one copy of the weights: as many as were asked for, or (0) a node's ranks, or the ranks over their
// smallest prime factor. InputError if it does not divide the data-parallel ranks.
[[nodiscard]] int hsdp_shard_size(std::int64_t asked_for, World& world, Mesh& mesh);
// The ranks over which a strategy shards: with hsdp these, else all that gradients are summed over.
[[nodiscard]] int shard_size_of(const StrategyOptions& strategy, std::int64_t asked_for, World& world, Mesh& mesh);

// Ranks on one machine share its memory. Beyond it the system would end processes without a word: InputError, which names what
// helps, `other_help` too.
void check_memory(const Options& options, const GptConfig& model, const Layout& layout, const StrategyOptions& strategy,
                  const World& world, const std::string& other_help = "");

// Trains options.steps steps on all ranks of the mesh; with options.verify rank 0 trains the baseline first, on one device, and
// compares. All ranks call it; the report is rank 0's.
[[nodiscard]] Report run(const Options& options, const Lesson& lesson, World& world, Mesh& mesh);

}  // namespace ref5d::data_parallel
