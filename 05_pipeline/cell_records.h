// What is recorded around the cells that a rank runs: memory for the claims, processor time for virtual time, and when each ran
// for traces.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "05_pipeline/schedule.h"
#include "common/device/stream.h"
#include "common/device/timeline.h"

namespace ref5d::pipeline {

// What a rank's ledger held after a cell, beside what was there before the first one.
struct CellMemory {
  std::int64_t activations = 0, weight_work = 0;  // bytes
};

class CellRecords {
 public:
  // A step begins: times of the one before are forgotten. Memory is recorded once, for the first run of the first step.
  void begin_step();
  void end_run() { records_memory_ = false; }
  // Around a cell that is enqueued on the stream; inputs_have_come in between, once the stream waits for nothing any more.
  void begin_cell();
  void inputs_have_come(Stream& stream, const Cell& cell);
  void end_cell(Stream& stream);
  // Gives what the stream has marked to the profiler, which shows it as a stream "pipeline". Waits for the stream.
  void hand_over(Stream& stream);

  [[nodiscard]] const std::vector<CellMemory>& memory() const { return memory_; }
  // Of a step that was recorded as this timeline: processor time of each of `cells` cells on the stream `compute`, the mean
  // over the step's runs.
  [[nodiscard]] std::vector<double> cell_us(std::span<const TimelineEntry> timeline, int compute, std::size_t cells) const;

 private:
  struct Mark {
    std::string name;
    double begin_us = 0, end_us = 0;  // of the profiler's clock
  };
  void mark(Stream& stream, const std::string& name);

  bool records_memory_ = false, begun_ = false;
  CellMemory before_;
  std::vector<CellMemory> memory_;
  std::size_t first_entry_ = 0;
  std::vector<std::pair<std::size_t, std::size_t>> entries_;  // of the timeline, by cell
  std::shared_ptr<std::vector<Mark>> marks_ = std::make_shared<std::vector<Mark>>();
};

}  // namespace ref5d::pipeline
