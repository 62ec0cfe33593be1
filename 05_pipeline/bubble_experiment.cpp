#include <fmt/format.h>

#include <algorithm>

#include "05_pipeline/costs.h"
#include "05_pipeline/experiments.h"
#include "05_pipeline/live.h"
#include "05_pipeline/simulate.h"
#include "common/app/measure.h"
#include "common/app/settings.h"
#include "common/comm/group.h"
#include "common/device/error.h"
#include "common/io/trace.h"
#include "common/verify/table.h"

namespace ref5d::pipeline {

namespace {

constexpr std::int64_t kMeasuredSteps = 5;

// Every rank's cells' times, by rank of the pp axis and cell: on its first rank.
std::vector<std::vector<double>> gather_times(const Group& group, const std::vector<double>& mine) {
  const auto* begin = reinterpret_cast<const std::byte*>(mine.data());
  std::vector<std::vector<double>> all;
  for (const Bytes& of_rank : gather_on_host(group, Bytes(begin, begin + mine.size() * sizeof(double)))) {
    std::vector<double>& times = all.emplace_back(of_rank.size() / sizeof(double));
    std::copy(of_rank.begin(), of_rank.end(), reinterpret_cast<std::byte*>(times.data()));
  }
  return all;
}

Costs measured_costs(const Schedule& s, const std::vector<std::vector<double>>& times, double message) {
  auto by_cell = std::make_shared<std::vector<std::map<std::string, double>>>(times.size());
  for (std::size_t r = 0; r < times.size(); ++r)
    for (std::size_t i = 0; i < times[r].size(); ++i) (*by_cell)[r][to_text(s.ranks[r][i])] = times[r][i];
  return {[by_cell](int rank, const Cell& cell) { return (*by_cell)[static_cast<std::size_t>(rank)].at(to_text(cell)); },
          message};
}

void write_simulation(const std::string& path, const Schedule& s, const Simulation& run) {
  std::vector<TraceSpan> spans;
  for (int r = 0; r < s.rank_count(); ++r) {
    const auto rank = static_cast<std::size_t>(r);
    for (std::size_t i = 0; i < s.ranks[rank].size(); ++i) {
      const Interval& at = run.ranks[rank][i];
      spans.push_back({r, "pipeline", to_text(s.ranks[rank][i]), at.begin, at.end - at.begin, "compute", {}});
    }
  }
  write_trace(path, spans);
}

struct Measurement {
  Schedule schedule;
  Simulation unit, measured;
  double message_us = 0;
};

Measurement measure_schedule(Experiment& e, const Lesson& lesson) {
  const LayoutPlan l = plan_layout(e.options, lesson, e.world, e.mesh);
  const Schedule& s = l.plan->schedule;
  const Measured m = measure("05_pipeline", e.options, l.settings, kMeasuredSteps, e.world, e.mesh);
  const auto compute = std::find(m.streams.begin(), m.streams.end(), device().compute().name()) - m.streams.begin();
  const auto times = gather_times(e.mesh["pp"].group(),
                                  l.pipeline->records().cell_us(m.timeline, static_cast<int>(compute),
                                                                s.ranks[static_cast<std::size_t>(e.mesh["pp"].rank())].size()));
  Measurement result{s, {}, {}};
  if (!e.world.is_root()) return result;
  const double share = static_cast<double>(s.rank_count()) / s.stages;
  // Of a boundary, this rank's part.
  const auto cuts = static_cast<std::int64_t>(e.mesh.size("cp") * (lesson.stage.sp ? e.mesh.size("tp") : 1));
  const std::int64_t bytes = e.options.micro_batch * l.settings.model.seq * l.settings.model.hidden *
                             static_cast<std::int64_t>(dtype_size(e.options.dtype)) / cuts;
  result.message_us = e.link.us(bytes);
  result.unit = simulate(s, uniform_costs(share, share, share));
  result.measured = simulate(s, measured_costs(s, times, result.message_us));
  return result;
}

std::vector<std::string> row_of(const Measurement& m) {
  int peak = 0;
  for (int r = 0; r < m.schedule.rank_count(); ++r) peak = std::max(peak, peak_activations(m.schedule, r));
  const int ranks = m.schedule.rank_count();
  return {m.schedule.name,
          fmt::format("{}", m.schedule.stages),
          fmt::format("{:.1f}%", 100 * m.unit.bubble_rate()),
          fmt::format("{:.1f}%", 100 * m.measured.bubble_rate()),
          fmt::format("{:.2f}", m.unit.makespan * ranks / m.unit.work()),
          fmt::format("{:.2f}", m.measured.makespan * ranks / m.measured.work()),
          fmt::format("{}", peak)};
}

// A replay takes no less time than its busiest rank works, and no more than all ranks one after the other, with their messages.
void add_to_report(Report& report, const Measurement& m) {
  double busiest = 0;
  for (int r = 0; r < m.schedule.rank_count(); ++r) busiest = std::max(busiest, m.measured.busy(r));
  report.timing["virtual_ms " + m.schedule.name] = m.measured.makespan / 1000;
  report.timing["virtual_idle " + m.schedule.name] = m.measured.bubble_rate();
  const double messages = 2.0 * static_cast<double>(crossings(m.schedule)) * m.message_us;
  const bool between = busiest <= m.measured.makespan && m.measured.makespan <= m.measured.work() + messages;
  report.claims.push_back(
      make_claim(fmt::format("bubble, {}: time is between the busiest rank's work and all work in turn", m.schedule.name), 1,
                 between ? 1 : 0, 0));
}

}  // namespace

std::vector<OutputFile> virtual_traces(const std::string& name, const std::string& prefix) {
  std::vector<OutputFile> files;
  if (prefix.empty() || (name != "bubble" && name != "all")) return files;
  for (const std::string& schedule : schedule_names())
    for (const char* times : {"unit", "measured"})
      files.push_back({"--virtual-trace", fmt::format("{}.{}.{}.json", prefix, schedule, times)});
  return files;
}

void bubble_experiment(Experiment& e) {
  std::vector<std::vector<std::string>> table{
      {"schedule", "stages", "idle, equal times", "measured", "step/work, equal times", "measured", "passes kept"}};
  std::string left_out;
  for (const std::string& name : schedule_names()) {
    if (name == "custom" && e.lesson.schedule.name != "custom") continue;
    Lesson lesson = e.lesson;
    lesson.sabotage = nullptr;
    lesson.schedule.name = name;
    lesson.pipeline.stage_layers = name == e.lesson.schedule.name ? e.lesson.pipeline.stage_layers : "";
    const std::string& strategy = lesson.stage.strategy.kind;
    if (strategy == "zero3" || strategy == "hsdp") lesson.stage.strategy.kind = "ddp";
    try {  // what all ranks refuse alike
      (void)make_plan(make_schedule(lesson.schedule), model_config(e.options).layers, lesson.pipeline.stage_layers);
    } catch (const InputError& error) {
      left_out += fmt::format("{} is left out: {}\n", name, error.what());
      continue;
    }
    const Measurement m = measure_schedule(e, lesson);
    if (!e.world.is_root()) continue;
    table.push_back(row_of(m));
    add_to_report(e.report, m);
    if (e.virtual_trace.empty()) continue;
    write_simulation(fmt::format("{}.{}.unit.json", e.virtual_trace, name), m.schedule, m.unit);
    write_simulation(fmt::format("{}.{}.measured.json", e.virtual_trace, name), m.schedule, m.measured);
  }
  if (e.prints())
    fmt::print(
        "\nA run of each schedule in virtual time: each cell's own processor time (median of {} steps), messages at {:g} "
        "MB/s and {:g} us\n{}{}",
        kMeasuredSteps, e.link.bytes_per_us, e.link.latency_us, format_table(table, "lrrrrrr"), left_out);
}

}  // namespace ref5d::pipeline
