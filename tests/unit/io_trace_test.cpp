#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <set>

#include "common/device/error.h"
#include "common/io/file.h"
#include "common/io/trace.h"
#include "tests/support/io_testing.h"

namespace ref5d {
namespace {

using testing::error_of;
using testing::expect_contains;
using testing::TempDir;

TEST(IoTrace, NamesRowsAndKeepsSpans) {
  const TempDir dir;
  const std::vector<TraceSpan> spans = {{1, "compute", "forward \"0\"", 0.1, 2.5, "F", Json::object({{"micro_batch", 0}})},
                                        {0, "communication", "all_reduce", 1234567890.125, 0, "", {}},
                                        {0, "compute", "backward", 3, 1e-3, "B", {}},
                                        {1, "compute", "again", 5, 1, "", {}}};
  write_trace(dir.path("t.json"), spans);
  const Json json = Json::parse(read_file(dir.path("t.json")));
  std::map<std::int64_t, std::string> processes;
  std::map<std::pair<std::int64_t, std::int64_t>, std::string> threads;
  std::vector<const Json*> events;
  for (const Json& event : json.at("traceEvents").items()) {
    const std::string& phase = event.at("ph").as_string();
    const std::int64_t pid = event.at("pid").as_int();
    if (phase == "X") {
      events.push_back(&event);
    } else if (event.at("name").as_string() == "process_name") {
      processes[pid] = event.at("args").at("name").as_string();
    } else if (event.at("name").as_string() == "thread_name") {
      threads[{pid, event.at("tid").as_int()}] = event.at("args").at("name").as_string();
    }
  }
  EXPECT_EQ(processes, (std::map<std::int64_t, std::string>{{0, "rank 0"}, {1, "rank 1"}}));
  EXPECT_EQ(threads.size(), 3u);
  ASSERT_EQ(events.size(), spans.size());
  std::set<std::int64_t> numbers;
  for (std::size_t i = 0; i < spans.size(); ++i) {
    const Json& event = *events[i];
    EXPECT_EQ(event.at("name").as_string(), spans[i].name);
    EXPECT_EQ(event.at("pid").as_int(), spans[i].rank);
    EXPECT_EQ(threads.at({event.at("pid").as_int(), event.at("tid").as_int()}), spans[i].stream);
    EXPECT_EQ(event.at("ts").as_double(), spans[i].start_us);
    EXPECT_EQ(event.at("dur").as_double(), spans[i].duration_us);
    EXPECT_EQ(event.contains("cat"), !spans[i].category.empty());
    numbers.insert(event.at("tid").as_int());
  }
  EXPECT_EQ(numbers.size(), 3u);  // a thread number belongs to one rank
  EXPECT_EQ(events[0]->at("args").at("micro_batch").as_int(), 0);
  EXPECT_FALSE(events[1]->contains("args"));
}

TEST(IoTrace, NoSpansIsAValidFile) {
  const TempDir dir;
  write_trace(dir.path("t.json"), {});
  EXPECT_EQ(Json::parse(read_file(dir.path("t.json"))).at("traceEvents").size(), 0u);
}

TEST(IoTrace, ImpossibleTimesAreRefused) {
  const TempDir dir;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const auto& [start, duration] : {std::pair{nan, 1.0}, {0.0, nan}, {0.0, -1.0}}) {
    const std::vector<TraceSpan> spans = {{3, "s", "bad", start, duration, "", {}}};
    expect_contains(error_of<RunError>([&] { write_trace(dir.path("t.json"), spans); }), "'bad' of rank 3");
  }
  EXPECT_EQ(dir.entries(), 0);
}

}  // namespace
}  // namespace ref5d
