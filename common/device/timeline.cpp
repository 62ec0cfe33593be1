#include "common/device/timeline.h"

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <stdexcept>

namespace ref5d {

void Timeline::start() {
  entries_.clear();
  streams_.clear();
  on_ = true;
}

std::size_t Timeline::add(TimelineEntry entry) {
  entries_.push_back(std::move(entry));
  return entries_.size() - 1;
}

int Timeline::stream(const std::string& name) {
  const auto found = std::find(streams_.begin(), streams_.end(), name);
  if (found != streams_.end()) return static_cast<int>(found - streams_.begin());
  streams_.push_back(name);
  return static_cast<int>(streams_.size()) - 1;
}

namespace {

class Replay {
 public:
  Replay(std::span<const TimelineEntry> entries, const Link& link) : link_(link) {
    for (const TimelineEntry& e : entries) {
      queues_[e.stream].push_back(&e);
      if (e.kind == TimelineEntry::Kind::kRecord) recorded_.insert(e.event.get());
    }
  }

  VirtualRun run() {
    while (step()) {
    }
    for (const auto& [stream, queue] : queues_)
      if (!queue.empty()) throw std::logic_error("the recorded streams wait for each other");
    for (const VirtualSpan& s : run_.spans) run_.total_us = std::max(run_.total_us, s.start_us + s.duration_us);
    return std::move(run_);
  }

 private:
  // The head that can start first runs.
  bool step() {
    int best = -1;
    double best_start = 0;
    for (const auto& [stream, queue] : queues_) {
      if (queue.empty()) continue;
      const TimelineEntry& head = *queue.front();
      double start = free_[stream];
      if (head.kind == TimelineEntry::Kind::kWait && recorded_.contains(head.event.get())) {
        const auto happened = events_.find(head.event.get());
        if (happened == events_.end()) continue;
        start = std::max(start, happened->second);
      }
      if (head.kind == TimelineEntry::Kind::kCommunication) start = std::max(start, link_free_);
      if (best < 0 || start < best_start) best = stream, best_start = start;
    }
    if (best < 0) return false;
    perform(best, best_start);
    return true;
  }

  void perform(int stream, double start) {
    const TimelineEntry& e = *queues_[stream].front();
    queues_[stream].pop_front();
    free_[stream] = start;
    if (e.kind == TimelineEntry::Kind::kRecord) events_[e.event.get()] = start;
    if (e.kind == TimelineEntry::Kind::kRecord || e.kind == TimelineEntry::Kind::kWait) return;
    const bool communicates = e.kind == TimelineEntry::Kind::kCommunication;
    const double us = communicates ? link_.us(e.bytes) : e.us;
    free_[stream] = start + us;
    if (communicates) link_free_ = start + us;
    if (communicates) run_.communication_us += us;
    if (!communicates && stream == 0) run_.compute_us += us;
    run_.spans.push_back({stream, e.name, start, us, communicates});
  }

  Link link_;
  std::map<int, std::deque<const TimelineEntry*>> queues_;
  std::map<int, double> free_;
  std::set<const void*> recorded_;
  std::map<const void*, double> events_;
  double link_free_ = 0;
  VirtualRun run_;
};

}  // namespace

VirtualRun replay(std::span<const TimelineEntry> entries, const Link& link) { return Replay(entries, link).run(); }

}  // namespace ref5d
