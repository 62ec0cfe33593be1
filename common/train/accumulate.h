// Forward and backward over the micro-batches of one optimizer step: gradient accumulation.
#pragma once

#include "common/model/gpt.h"
#include "common/train/dataset.h"
#include "common/train/loader.h"

namespace ref5d {

// Mistakes that training codes have made, to show that the checks notice (--sabotage).
struct AccumulationFaults {
  bool mean_of_means = false;         // each micro-batch's own mean, averaged over micro-batches (pitfall P01)
  bool mean_per_micro_batch = false;  // each micro-batch's own mean, not divided by their number
  bool keep_gradients = false;        // gradients are not zeroed between steps
};

// Adds the gradients of a global batch, cut into micro-batches of `micro_batch` contiguous samples (the last may be smaller),
// to the parameters, and its loss to ctx.loss_sum (summed over valid labels, not yet divided).
void accumulate_gradients(Gpt& gpt, Context& ctx, Loader& loader, const GlobalBatch& batch, std::int64_t micro_batch,
                          const AccumulationFaults& faults = {});

}  // namespace ref5d
