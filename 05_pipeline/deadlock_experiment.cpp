#include <fmt/format.h>

#include "05_pipeline/exchanges.h"
#include "05_pipeline/experiments.h"
#include "common/device/error.h"
#include "common/verify/table.h"

namespace ref5d::pipeline {

namespace {

// What stands still, or nothing.
std::string standstill(const Schedule& s, const Exchanges& exchanges) {
  try {
    expect_no_deadlock(s, exchanges);
    return "";
  } catch (const InputError& error) {
    return error.what();
  }
}

}  // namespace

void deadlock_experiment(Experiment& e) {
  if (!e.world.is_root()) return;
  std::vector<std::vector<std::string>> table{{"schedule", "receive, compute, send", "exchanges by time"}};
  std::string first, left_out;
  int planned_standstills = 0;
  for (const std::string& name : schedule_names()) {
    if (name == "custom" && e.lesson.schedule.name != "custom") continue;
    ScheduleOptions options = e.lesson.schedule;
    options.name = name;
    try {
      const Schedule s = make_schedule(options);
      const std::string naive = standstill(s, naive_exchanges(s)), planned = standstill(s, make_exchanges(s));
      if (first.empty() && !naive.empty()) first = fmt::format("{}: {}\n", name, naive);
      planned_standstills += planned.empty() ? 0 : 1;
      table.push_back({name, naive.empty() ? "ends" : "stands still", planned.empty() ? "ends" : "stands still"});
    } catch (const InputError& error) {
      left_out += fmt::format("{} is left out: {}\n", name, error.what());
    }
  }
  e.report.claims.push_back(
      make_claim("deadlock, exchanges by time: schedules that stand still", 0, planned_standstills, 0, ""));
  if (e.prints())
    fmt::print("\nWith sends that end only when they are received, {} ranks, {} micro-batches\n{}{}{}", e.lesson.schedule.ranks,
               e.lesson.schedule.micro_batches, format_table(table, "lll"), first, left_out);
}

}  // namespace ref5d::pipeline
