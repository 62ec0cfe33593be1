// The micro-batches that a rank's cells are about: each is brought to the device once, before its first cell, and goes after
// its last.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "05_pipeline/schedule.h"
#include "common/train/accumulate.h"

namespace ref5d::pipeline {

class MicroBatches {
 public:
  // Those of one run of the schedule, the first of which is number `first` of the share.
  MicroBatches(const std::vector<Cell>& cells, Loader& loader, const GlobalBatch& share, std::int64_t micro_batch,
               std::int64_t first);

  // Of the schedule's micro-batch m. The next one that the rank will need is copied meanwhile.
  [[nodiscard]] const MicroBatch& take(int m);
  // One more of its operations has been enqueued.
  void done(int m);
  // Its number in the share.
  [[nodiscard]] std::int64_t number(int m) const { return first_ + m; }
  [[nodiscard]] std::span<const Row> rows(int m) const { return rows_of_micro_batch(share_, micro_batch_, number(m)); }
  // A fault: each micro-batch's loss is divided by its own labels, and then by their number.
  void divide_each() { divides_each_ = true; }

 private:
  void start_next();

  Loader& loader_;
  const GlobalBatch& share_;
  std::int64_t micro_batch_, first_;
  std::vector<int> order_;  // of first use
  std::size_t started_ = 0;
  std::map<int, int> operations_;  // that are to come
  std::map<int, MicroBatch> here_;
  bool divides_each_ = false;
};

}  // namespace ref5d::pipeline
