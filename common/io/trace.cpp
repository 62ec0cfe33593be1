#include "common/io/trace.h"

#include <fmt/core.h>

#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "common/device/error.h"
#include "common/io/file.h"

namespace ref5d {
namespace {

// Writes the elements of traceEvents, one per line.
class EventList {
 public:
  explicit EventList(AtomicFile& file) : file_(file) {}
  void add(const Json& event) {
    if (!first_) file_.write(",\n");
    first_ = false;
    file_.write(event.dump());
  }

 private:
  AtomicFile& file_;
  bool first_ = true;
};

Json metadata_event(const char* what, int rank, int thread, Json args) {
  return Json::object({{"name", what}, {"ph", "M"}, {"pid", rank}, {"tid", thread}, {"args", std::move(args)}});
}

// Thread numbers differ over all ranks and begin at 1: viewers give thread 0 a meaning of its own.
using Threads = std::map<std::pair<int, std::string>, int>;

void name_rows(EventList& events, std::span<const TraceSpan> spans, Threads& threads) {
  std::map<int, int> streams_of_rank;
  for (const TraceSpan& span : spans) {
    const auto [thread, is_new] = threads.emplace(std::pair(span.rank, span.stream), static_cast<int>(threads.size()) + 1);
    if (!is_new) continue;
    const int number = thread->second;
    const auto [count, is_first] = streams_of_rank.emplace(span.rank, 0);
    if (is_first) {
      events.add(
          metadata_event("process_name", span.rank, number, Json::object({{"name", fmt::format("rank {}", span.rank)}})));
      events.add(metadata_event("process_sort_index", span.rank, number, Json::object({{"sort_index", span.rank}})));
    }
    events.add(metadata_event("thread_name", span.rank, number, Json::object({{"name", span.stream}})));
    events.add(metadata_event("thread_sort_index", span.rank, number, Json::object({{"sort_index", count->second++}})));
  }
}

Json span_event(const TraceSpan& span, int thread) {
  if (!std::isfinite(span.start_us) || !std::isfinite(span.duration_us) || span.duration_us < 0) {
    throw RunError(fmt::format(
        "trace span '{}' of rank {} begins at {} us and lasts {} us; both must be finite and the duration not negative",
        span.name, span.rank, span.start_us, span.duration_us));
  }
  Json event = Json::object({{"name", span.name}});
  if (!span.category.empty()) event.append_member("cat", span.category);
  event.append_member("ph", "X");
  event.append_member("ts", span.start_us);
  event.append_member("dur", span.duration_us);
  event.append_member("pid", span.rank);
  event.append_member("tid", thread);
  if (span.args.size() > 0) event.append_member("args", span.args);
  return event;
}

}  // namespace

void write_trace(const std::string& path, std::span<const TraceSpan> spans) {
  AtomicFile file(path);
  file.write("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
  EventList events(file);
  Threads threads;
  name_rows(events, spans, threads);
  for (const TraceSpan& span : spans) events.add(span_event(span, threads.at({span.rank, span.stream})));
  file.write("\n]}\n");
  file.commit();
}

}  // namespace ref5d
