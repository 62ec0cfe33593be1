// Schedules for tests, made in one line, and the sizes that every test of all schedules goes through.
#pragma once

#include <string>
#include <vector>

#include "05_pipeline/schedules.h"
#include "common/device/error.h"

namespace ref5d::testing {

inline pipeline::Schedule schedule_of(const std::string& name, int ranks, int micro_batches, int chunks = 2, int group = 0) {
  pipeline::ScheduleOptions options;
  options.name = name;
  options.ranks = ranks;
  options.micro_batches = micro_batches;
  options.chunks = chunks;
  options.group = group;
  return pipeline::make_schedule(options);
}

// A rank's cells in one line: "0F0 0F1 0B0 0B1".
inline std::string row_text(const pipeline::Schedule& schedule, int rank) {
  std::string text;
  for (const pipeline::Cell& cell : schedule.ranks[static_cast<std::size_t>(rank)]) {
    text += (text.empty() ? "" : " ") + to_text(cell);
  }
  return text;
}

// What an InputError from the call says; empty if there is none.
template <typename F>
std::string input_error_of(F&& call) {
  try {
    call();
  } catch (const InputError& e) {
    return e.what();
  }
  return "";
}

inline bool schedule_defined(const std::string& name, int ranks, int micro_batches) {
  if (name == "dualpipe") return ranks % 2 == 0 && micro_batches % 2 == 0 && micro_batches >= 2 * ranks;
  if (name == "dualpipev") return micro_batches >= 2 * ranks;
  return true;
}

// Every schedule at every size for which it is defined, up to so many ranks, and three times as many micro-batches. (M < P and
// M = 1 are among them: pitfall P36.)
inline std::vector<pipeline::Schedule> all_schedules(int most_ranks) {
  std::vector<pipeline::Schedule> all;
  for (const std::string& name : pipeline::schedule_names()) {
    if (name == "custom") continue;
    for (int p = 1; p <= most_ranks; ++p) {
      for (int m = 1; m <= 3 * p; ++m) {
        if (schedule_defined(name, p, m)) all.push_back(schedule_of(name, p, m));
      }
    }
  }
  return all;
}

inline std::string size_text(const pipeline::Schedule& s) {
  return s.name + " on " + std::to_string(s.rank_count()) + " ranks, " + std::to_string(s.micro_batches) + " micro-batches, " +
         std::to_string(s.stages) + " stages";
}

}  // namespace ref5d::testing
