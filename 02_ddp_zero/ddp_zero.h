// Lesson 02: one model on several ranks that share the batch, and ever less of what each of them holds.
#pragma once

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

// Whether every group of `size` consecutive ranks of the mesh is on one node.
[[nodiscard]] bool groups_are_within_nodes(const World& world, const Mesh& mesh, int size);

// The ranks that share one copy of the weights: shard_size, by default a node's ranks, or the ranks over their smallest prime
// factor. InputError if it does not divide the data-parallel ranks.
[[nodiscard]] int hsdp_shard_size(const Lesson& lesson, World& world, const Mesh& mesh);

// Trains options.steps steps on all ranks of the mesh; with options.verify rank 0 trains the baseline first, on one device, and
// compares. All ranks call it; the report is rank 0's.
[[nodiscard]] Report run(const Options& options, const Lesson& lesson, World& world, Mesh& mesh);

}  // namespace ref5d::data_parallel
