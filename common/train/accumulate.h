// Forward and backward over the micro-batches of one optimizer step: gradient accumulation.
#pragma once

#include <functional>

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

// The samples of micro-batch m, and how many there are: the last may have fewer samples.
[[nodiscard]] std::span<const Row> rows_of_micro_batch(const GlobalBatch& batch, std::int64_t micro_batch, std::int64_t m);
[[nodiscard]] std::int64_t count_micro_batches(const GlobalBatch& batch, std::int64_t micro_batch);

// Calls pass(m, micro-batch) for each of the batch's micro-batches of `micro_batch` contiguous samples (the last may be
// smaller), in order; the next one is copied to the device meanwhile. ctx.batch is set during the call. Scales are the law of
// gradients': loss_scale 1 / valid labels of the global batch, aux_loss_scale 1 / micro-batches of all replicas.
void for_each_micro_batch(Context& ctx, Loader& loader, const GlobalBatch& batch, std::int64_t micro_batch,
                          const std::function<void(std::int64_t m, MicroBatch& b)>& pass);

// Adds the gradients of a global batch, cut into micro-batches of `micro_batch` contiguous samples (the last may be smaller),
// to the parameters, and its loss to ctx.loss_sum (summed over valid labels, not yet divided).
void accumulate_gradients(Gpt& gpt, Context& ctx, Loader& loader, const GlobalBatch& batch, std::int64_t micro_batch,
                          const AccumulationFaults& faults = {});

}  // namespace ref5d
