#include "05_pipeline/cell_records.h"

#include <algorithm>
#include <chrono>

#include "common/device/device.h"

namespace ref5d::pipeline {

namespace {
CellMemory ledger_now() {
  const MemoryLedger& ledger = device().memory();
  return {ledger.current(MemoryCategory::kActivations), ledger.current(MemoryCategory::kDeferredWeightGradients)};
}
}  // namespace

void CellRecords::begin_step() {
  entries_.clear();
  records_memory_ = memory_.empty();
  before_ = ledger_now();
}

void CellRecords::begin_cell() {
  first_entry_ = device().timeline().entries().size();
  begun_ = false;
}

void CellRecords::inputs_have_come(Stream& stream, const Cell& cell) {
  if (!begun_ && device().profiler().on()) mark(stream, to_text(cell));
  begun_ = true;
}

void CellRecords::end_cell(Stream& stream) {
  if (device().profiler().on()) mark(stream, "");
  if (device().timeline().on()) entries_.emplace_back(first_entry_, device().timeline().entries().size());
  const CellMemory now = ledger_now();
  if (records_memory_) memory_.push_back({now.activations - before_.activations, now.weight_work - before_.weight_work});
}

// The time at which the stream has come so far: a cell's beginning if it is named, else the end of the one that was begun.
void CellRecords::mark(Stream& stream, const std::string& name) {
  host_task(stream, name.empty() ? "end" : "begin", [marks = marks_, name, origin = device().profiler().origin()] {
    const double now = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - origin).count();
    if (!name.empty()) marks->push_back({name, now, now});
    marks->back().end_us = now;
  });
}

void CellRecords::hand_over(Stream& stream) {
  stream.synchronize();
  for (const Mark& m : *marks_) device().profiler().add_us("pipeline", m.name, m.begin_us, m.end_us - m.begin_us);
  marks_->clear();
}

std::vector<double> CellRecords::cell_us(std::span<const TimelineEntry> timeline, int compute, std::size_t cells) const {
  std::vector<double> us(cells, 0.0);
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    for (std::size_t e = entries_[i].first; e < entries_[i].second; ++e) {
      const TimelineEntry& entry = timeline[e];
      if (entry.kind == TimelineEntry::Kind::kWork && entry.stream == compute) us[i % cells] += entry.us;
    }
  }
  const double runs = static_cast<double>(entries_.size()) / static_cast<double>(cells);
  for (double& time : us) time /= std::max(runs, 1.0);
  return us;
}

}  // namespace ref5d::pipeline
