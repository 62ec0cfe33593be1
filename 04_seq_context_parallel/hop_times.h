// How long attention's kernels take for each hop of a ring.
#pragma once

#include "04_seq_context_parallel/ring_work.h"
#include "common/model/config.h"
#include "common/tensor/dtype.h"

namespace ref5d::context_parallel {

// Processor time, in microseconds, of one layer's attention forward (merging included), of each rank's queries over each hop's
// keys, on this device: for each rank and hop, 0 where nothing is visible. MODE=cpu and emu.
[[nodiscard]] ByHop<double> time_hops(const GptConfig& model, Dtype dtype, const SequenceLayout& layout, const Row& row);

}  // namespace ref5d::context_parallel
