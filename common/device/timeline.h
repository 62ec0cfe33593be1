// Virtual time: what a step would take on a stated link. On cores that ranks share, overlap gains no time on the clock. So the
// order of a step's work is recorded (which stream, which event it waits for) with the time that each kernel took, and replayed
// with communication that takes what the link says.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace ref5d {

struct TimelineEntry {
  enum class Kind { kWork, kCommunication, kRecord, kWait } kind;
  int stream;
  std::string name;
  double us = 0;                                // kWork: processor time
  std::int64_t bytes = 0;                       // kCommunication: that this rank sends
  std::shared_ptr<const void> event = nullptr;  // kRecord, kWait: which
};

// Records while it is on. MODE=cpu alone feeds it.
class Timeline {
 public:
  void start();  // forgets what it had
  void stop() { on_ = false; }
  [[nodiscard]] bool on() const { return on_; }
  [[nodiscard]] std::size_t add(TimelineEntry entry);
  void took(std::size_t entry, double us) { entries_[entry].us = us; }
  [[nodiscard]] const std::vector<TimelineEntry>& entries() const { return entries_; }
  // The number of a stream, by its name.
  [[nodiscard]] int stream(const std::string& name);
  [[nodiscard]] const std::vector<std::string>& streams() const { return streams_; }

 private:
  bool on_ = false;
  std::vector<TimelineEntry> entries_;
  std::vector<std::string> streams_;
};

// A message takes latency + bytes / speed; a rank has one link, so that its messages follow one another.
struct Link {
  double latency_us = 0, bytes_per_us = 1;
  [[nodiscard]] double us(std::int64_t bytes) const { return latency_us + static_cast<double>(bytes) / bytes_per_us; }
};

struct VirtualSpan {
  int stream;
  std::string name;
  double start_us, duration_us;
  bool communication;
};

struct VirtualRun {
  std::vector<VirtualSpan> spans;
  double total_us = 0;          // from the first to the last
  double compute_us = 0;        // work of the stream that computes, the first one
  double communication_us = 0;  // of the link
  // What communication adds to the step.
  [[nodiscard]] double exposed_us() const { return total_us - compute_us; }
};
// Streams run side by side, each in its order, each entry as early as its events and the link allow. Other ranks are taken to
// be at the same point. What was recorded before the first entry has happened.
[[nodiscard]] VirtualRun replay(std::span<const TimelineEntry> entries, const Link& link);

}  // namespace ref5d
