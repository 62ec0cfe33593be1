#include "05_pipeline/schedules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdint>

#include "05_pipeline/orders.h"
#include "05_pipeline/schedule_csv.h"
#include "common/device/error.h"

namespace ref5d::pipeline {

namespace {

struct NamedSchedule {
  const char* name;
  int (*stages)(const ScheduleOptions&);
  std::vector<CellRow> (*rows)(const ScheduleOptions&);
};

int a_stage_each(const ScheduleOptions& o) { return o.ranks; }
int two_stages_each(const ScheduleOptions& o) { return 2 * o.ranks; }

constexpr NamedSchedule kSchedules[] = {
    {"gpipe", a_stage_each, [](const ScheduleOptions& o) { return gpipe_rows(o.ranks, o.micro_batches); }},
    {"1f1b", a_stage_each, [](const ScheduleOptions& o) { return one_f_one_b_rows(o.ranks, o.micro_batches); }},
    {"interleaved", [](const ScheduleOptions& o) { return o.chunks * o.ranks; },
     [](const ScheduleOptions& o) { return interleaved_rows(o.ranks, o.micro_batches, o.chunks, o.group); }},
    {"zb-h1", a_stage_each, [](const ScheduleOptions& o) { return zb_h1_rows(o.ranks, o.micro_batches); }},
    {"zb-h2", a_stage_each, [](const ScheduleOptions& o) { return zb_h2_rows(o.ranks, o.micro_batches); }},
    {"zb-v", two_stages_each, [](const ScheduleOptions& o) { return zb_v_rows(o.ranks, o.micro_batches); }},
    {"dualpipe", a_stage_each, [](const ScheduleOptions& o) { return dualpipe_rows(o.ranks, o.micro_batches); }},
    {"dualpipev", two_stages_each, [](const ScheduleOptions& o) { return dualpipev_rows(o.ranks, o.micro_batches); }},
};
constexpr const char* kFromFile = "custom";

void check_options(const ScheduleOptions& o) {
  if (o.ranks < 1) throw InputError(fmt::format("a pipeline needs a rank at least; {} were given", o.ranks));
  if (o.micro_batches < 1) throw InputError(fmt::format("--micro-batches must be 1 or more; {} was given", o.micro_batches));
  if (o.name == "interleaved" && o.chunks < 1)
    throw InputError(fmt::format("--chunks must be 1 or more; {} was given", o.chunks));
  if (o.name == "interleaved" && o.group < 0) {
    throw InputError(fmt::format("--group must be 1 or more, or 0 for groups that fit the ranks; {} was given", o.group));
  }
  const bool v = o.name == "zb-v" || o.name == "dualpipev";
  const std::int64_t stages = std::int64_t{o.ranks} * (o.name == "interleaved" ? o.chunks : v ? 2 : 1);
  constexpr std::int64_t kMost = 1'000'000;
  if (stages > kMost || stages * o.micro_batches > kMost) {
    throw InputError(
        fmt::format("{} stages and {} micro-batches are more operations than a schedule may have; {} is the most for "
                    "their product",
                    stages, o.micro_batches, kMost));
  }
  // Fewer, and the steps of the two sides no longer fit together (pitfall P46).
  const bool enough = o.micro_batches >= 2 * o.ranks;
  if (o.name == "dualpipe" && (o.ranks % 2 != 0 || o.micro_batches % 2 != 0 || !enough)) {
    throw InputError(
        fmt::format("--schedule dualpipe needs an even number of stages along pp, and --micro-batches that are even "
                    "and at least 2 x {0}; {0} stages and {1} micro-batches were given",
                    o.ranks, o.micro_batches));
  }
  if (o.name == "dualpipev" && !enough) {
    throw InputError(
        fmt::format("--schedule dualpipev needs --micro-batches of at least 2 x {}; {} were given", o.ranks, o.micro_batches));
  }
}

Schedule from_file(const ScheduleOptions& o) {
  if (o.file.empty()) throw InputError("--schedule custom needs the name of a CSV file, with a row for each rank");
  Schedule schedule = read_csv(o.file);
  if (schedule.rank_count() != o.ranks || schedule.micro_batches != o.micro_batches) {
    throw InputError(
        fmt::format("{0} is a schedule of {1} ranks and {2} micro-batches; {3} and {4} were asked for, give --pp {1} and "
                    "--micro-batches {2}",
                    o.file, schedule.rank_count(), schedule.micro_batches, o.ranks, o.micro_batches));
  }
  return schedule;
}

Schedule published(const ScheduleOptions& o) {
  for (const NamedSchedule& s : kSchedules) {
    if (o.name == s.name) return {o.name, s.stages(o), o.micro_batches, s.rows(o)};
  }
  throw InputError(fmt::format("--schedule {} is not known; use one of {}", o.name, fmt::join(schedule_names(), ", ")));
}

}  // namespace

std::vector<std::string> schedule_names() {
  std::vector<std::string> names;
  for (const NamedSchedule& s : kSchedules) names.emplace_back(s.name);
  names.emplace_back(kFromFile);
  return names;
}

Schedule make_schedule(const ScheduleOptions& options) {
  check_options(options);
  Schedule schedule = options.name == kFromFile ? from_file(options) : published(options);
  const Assignment whole(schedule);  // or an InputError, with the file's name if it is from one
  if (options.name != kFromFile) schedule.name = options.name;
  return schedule;
}

}  // namespace ref5d::pipeline
