// What this lesson's flags choose.
#pragma once

#include <cstdint>

#include "02_ddp_zero/strategy.h"
#include "03_tensor_parallel/axis.h"
#include "04_seq_context_parallel/context_axis.h"
#include "04_seq_context_parallel/sequence_parallel.h"

namespace ref5d::seq_context_parallel {

struct Sabotage;

struct Lesson {
  bool sp = false;  // sequence parallelism over the tensor-parallel ranks
  sequence_parallel::SequenceParallelOptions sequence;
  context_parallel::ContextParallelOptions context;
  tensor_parallel::TensorParallelOptions tensor;
  data_parallel::StrategyOptions strategy;  // of the ranks that gradients are summed over
  std::int64_t shard_size = 0;              // of hsdp; 0: chosen
  double memory_cap_mib = 0;                // of a rank; 0: none
  const Sabotage* sabotage = nullptr;
};

}  // namespace ref5d::seq_context_parallel
