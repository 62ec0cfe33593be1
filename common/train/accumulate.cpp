#include "common/train/accumulate.h"

#include <algorithm>

namespace ref5d {

namespace {

// The factor of a micro-batch's loss. Right: 1 / valid labels of the global batch, the same for all, so that micro-batches just
// add up.
double loss_scale(const GlobalBatch& batch, std::span<const Row> rows, std::int64_t micro_batches,
                  const AccumulationFaults& faults) {
  if (!faults.mean_of_means && !faults.mean_per_micro_batch) return batch.loss_scale();
  std::int64_t own = 0;
  for (const Row& row : rows) own += count_valid_labels(row);
  const double mean = own == 0 ? 0.0 : 1.0 / static_cast<double>(own);
  return faults.mean_of_means ? mean / static_cast<double>(micro_batches) : mean;
}

}  // namespace

void accumulate_gradients(Gpt& gpt, Context& ctx, Loader& loader, const GlobalBatch& batch, std::int64_t micro_batch,
                          const AccumulationFaults& faults) {
  const auto total = static_cast<std::int64_t>(batch.rows.size());
  const std::int64_t micro_batches = (total + micro_batch - 1) / micro_batch;
  const std::span<const Row> all = batch.rows;
  auto rows_of = [&](std::int64_t m) {
    const std::int64_t begin = m * micro_batch, end = std::min(total, begin + micro_batch);
    return all.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
  };

  for (Parameter* p : gpt.parameters()) p->begin_step(ctx.stream, micro_batches, !faults.keep_gradients);
  loader.start(rows_of(0), batch.first_sample);
  for (std::int64_t m = 0; m < micro_batches; ++m) {
    MicroBatch b = loader.take(loss_scale(batch, rows_of(m), micro_batches, faults));
    b.aux_loss_scale = 1.0 / static_cast<double>(micro_batches);
    if (m + 1 < micro_batches)
      loader.start(rows_of(m + 1), batch.first_sample + (m + 1) * micro_batch);  // copied while this one computes
    ctx.batch = &b;
    Saved saved;  // what this micro-batch keeps for its backward; empty and freed before the next one starts
    gpt.forward(ctx, {}, saved);
    gpt.backward(ctx, {}, saved);
    ctx.batch = nullptr;
  }
}

}  // namespace ref5d
