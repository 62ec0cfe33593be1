// Timelines in the Chrome trace-event format, which Perfetto (https://ui.perfetto.dev) opens.
#pragma once

#include <span>
#include <string>

#include "common/io/json.h"

namespace ref5d {

// Something that ran on a stream of a rank.
struct TraceSpan {
  int rank = 0;
  std::string stream;
  std::string name;
  double start_us = 0;  // on a clock that all ranks share
  double duration_us = 0;
  std::string category;  // may be empty; Perfetto filters by it
  Json args;             // null, or an object of details that Perfetto shows when the span is clicked
};

// Writes one process row per rank and one thread row per stream, in the order in which a rank's streams first occur.
// Throws RunError for a span whose start or duration is not a number or whose duration is negative.
void write_trace(const std::string& path, std::span<const TraceSpan> spans);

}  // namespace ref5d
