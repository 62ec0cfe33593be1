#include "common/train/accumulate.h"

#include <algorithm>

namespace ref5d {

namespace {

// The factor of a micro-batch's loss with a mistake planted: its own mean.
double faulty_loss_scale(std::span<const Row> rows, std::int64_t micro_batches, const AccumulationFaults& faults) {
  std::int64_t own = 0;
  for (const Row& row : rows) own += count_valid_labels(row);
  const double mean = own == 0 ? 0.0 : 1.0 / static_cast<double>(own);
  return faults.mean_of_means ? mean / static_cast<double>(micro_batches) : mean;
}

}  // namespace

std::int64_t count_micro_batches(const GlobalBatch& batch, std::int64_t micro_batch) {
  return (static_cast<std::int64_t>(batch.rows.size()) + micro_batch - 1) / micro_batch;
}

std::span<const Row> rows_of_micro_batch(const GlobalBatch& batch, std::int64_t micro_batch, std::int64_t m) {
  const auto total = static_cast<std::int64_t>(batch.rows.size());
  const std::int64_t begin = m * micro_batch, end = std::min(total, begin + micro_batch);
  return std::span(batch.rows).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
}

void for_each_micro_batch(Context& ctx, Loader& loader, const GlobalBatch& batch, std::int64_t micro_batch,
                          const std::function<void(std::int64_t m, MicroBatch& b)>& pass) {
  const std::int64_t micro_batches = count_micro_batches(batch, micro_batch);
  const auto start = [&](std::int64_t m) {
    loader.start(rows_of_micro_batch(batch, micro_batch, m), batch.first_sample + m * micro_batch);
  };
  start(0);
  for (std::int64_t m = 0; m < micro_batches; ++m) {
    MicroBatch b = loader.take(batch.loss_scale());  // the same for all, so that micro-batches just add up
    b.aux_loss_scale = 1.0 / static_cast<double>(micro_batches * batch.replicas);
    if (m + 1 < micro_batches) start(m + 1);  // copied while this one computes
    ctx.batch = &b;
    pass(m, b);
    ctx.batch = nullptr;
  }
}

void accumulate_gradients(Gpt& gpt, Context& ctx, Loader& loader, const GlobalBatch& batch, std::int64_t micro_batch,
                          const AccumulationFaults& faults) {
  const std::int64_t micro_batches = count_micro_batches(batch, micro_batch);
  for (Parameter* p : gpt.parameters()) p->begin_step(ctx.stream, micro_batches, !faults.keep_gradients);
  for_each_micro_batch(ctx, loader, batch, micro_batch, [&](std::int64_t m, MicroBatch& b) {
    if (faults.mean_of_means || faults.mean_per_micro_batch)
      b.loss_scale = faulty_loss_scale(rows_of_micro_batch(batch, micro_batch, m), micro_batches, faults);
    Saved saved;  // what this micro-batch keeps for its backward; empty and freed before the next one starts
    gpt.forward(ctx, {}, saved);
    gpt.backward(ctx, {}, saved);
  });
}

}  // namespace ref5d
