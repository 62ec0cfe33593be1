#include "05_pipeline/micro_batches.h"

namespace ref5d::pipeline {

MicroBatches::MicroBatches(const std::vector<Cell>& cells, Loader& loader, const GlobalBatch& share, std::int64_t micro_batch,
                           std::int64_t first)
    : loader_(loader), share_(share), micro_batch_(micro_batch), first_(first) {
  for (const Cell& cell : cells) {
    for_each_operation(cell, [&](const Operation& o) {
      if (operations_[o.micro_batch]++ == 0) order_.push_back(o.micro_batch);
    });
  }
  start_next();
}

void MicroBatches::start_next() {
  if (started_ == order_.size()) return;
  const int m = order_[started_++];
  loader_.start(rows(m), share_.first_sample + number(m) * micro_batch_);
}

const MicroBatch& MicroBatches::take(int m) {
  if (const auto found = here_.find(m); found != here_.end()) return found->second;
  MicroBatch b = loader_.take(share_.loss_scale());
  // Several micro-batches' tables are here at a time. They are no part of what forward keeps.
  for (const Tensor& table : {b.rope.cos, b.rope.sin})
    if (table) table.set_category(MemoryCategory::kWorkspace);
  start_next();
  const std::int64_t all = count_micro_batches(share_, micro_batch_) * share_.replicas;
  b.aux_loss_scale = 1.0 / static_cast<double>(all);
  if (divides_each_) {
    std::int64_t labels = 0;
    for (const Row& row : rows(m)) labels += count_valid_labels(row);
    b.loss_scale = labels == 0 ? 0.0 : 1.0 / static_cast<double>(labels * all);
  }
  return here_.emplace(m, std::move(b)).first->second;
}

void MicroBatches::done(int m) {
  if (--operations_[m] == 0) here_.erase(m);
}

}  // namespace ref5d::pipeline
