#include <fmt/format.h>

#include <cmath>

#include "05_pipeline/experiments.h"
#include "05_pipeline/simulate.h"
#include "common/verify/table.h"

namespace ref5d::pipeline {

namespace {

// Qi et al. 2023, "Zero Bubble Pipeline Parallelism": what their models' passes took on their GPUs (table 9, ms), and the
// bubble rates that they give for these times (table 5).
struct PaperRow {
  int ranks, micro_batches, chunks;
  double forward, input, weight, message;
  double one_f_one_b, interleaved, h1, h2;
};
constexpr PaperRow kPaper[] = {
    {8, 24, 3, 18.522, 18.086, 9.337, .601, .2431, .1055, .1585, .1083},
    {8, 32, 3, 18.513, 18.086, 9.331, .626, .1985, .0818, .1242, .0837},
    {8, 64, 3, 18.546, 18.097, 9.321, .762, .1240, .0443, .0674, .0444},
    {8, 24, 4, 29.718, 29.444, 19.927, .527, .2347, .0808, .1323, .0698},
    {8, 32, 4, 29.802, 29.428, 19.530, .577, .1898, .0628, .1045, .0559},
    {8, 64, 4, 29.935, 29.621, 19.388, .535, .1091, .0320, .0554, .0294},
    {16, 48, 3, 11.347, 11.248, 8.132, .377, .2552, .1104, .1397, .0672},
    {16, 64, 3, 11.307, 11.254, 8.101, .379, .2082, .0852, .1088, .0516},
    {16, 128, 3, 11.325, 11.308, 8.109, .378, .1251, .0445, .0576, .0266},
    {32, 96, 2, 10.419, 10.207, 7.715, .408, .2646, .1493, .1421, .0641},
    {32, 128, 2, 10.408, 10.204, 7.703, .408, .2168, .1164, .1106, .0490},
    {32, 256, 2, 10.402, 10.248, 7.698, .460, .1352, .0624, .0594, .0257},
};

double simulated_rate(const PaperRow& row, const char* name) {
  const double chunk = std::string(name) == "interleaved" ? 1.0 / row.chunks : 1.0;
  ScheduleOptions o;
  o.name = name, o.ranks = row.ranks, o.micro_batches = row.micro_batches, o.chunks = row.chunks;
  const Schedule s = make_schedule(o);
  return simulate(s, uniform_costs(row.forward * chunk, row.input * chunk, row.weight * chunk, row.message)).bubble_rate();
}

// What their figures for interleaved 1F1B follow: half of the chunks' messages are hidden. An order in which every message is
// waited for has 2 (p v - 1) of them in its way.
double interleaved_form(const PaperRow& row) {
  const double all = row.forward + row.input + row.weight, p = row.ranks, v = row.chunks, m = row.micro_batches;
  const double cost = m * all + (p - 1) * all / v + (2 * p * v - 2 - p) * row.message;
  return (cost - m * all) / cost;
}

}  // namespace

void zero_bubble_experiment(Experiment& e) {
  if (!e.world.is_root()) return;
  std::vector<std::vector<std::string>> table{{"p", "m", "v", "1f1b", "zb-h1", "zb-h2", "interleaved", "simulated"}};
  const auto to_four_decimals = [](double rate) { return std::round(rate * 1e4) / 1e4; };
  for (const PaperRow& row : kPaper) {
    std::vector<std::string> cells{fmt::format("{}", row.ranks), fmt::format("{}", row.micro_batches),
                                   fmt::format("{}", row.chunks)};
    const auto claim = [&](const char* name, double expected, double measured) {
      e.report.claims.push_back(
          make_claim(fmt::format("zero-bubble, p {} m {} v {}: rate of {}", row.ranks, row.micro_batches, row.chunks, name),
                     expected, to_four_decimals(measured), 1e-9));
      cells.push_back(fmt::format("{:.4f}", measured));
    };
    claim("1f1b", row.one_f_one_b, simulated_rate(row, "1f1b"));
    claim("zb-h1", row.h1, simulated_rate(row, "zb-h1"));
    claim("zb-h2", row.h2, simulated_rate(row, "zb-h2"));
    claim("interleaved, by its closed form", row.interleaved, interleaved_form(row));
    cells.push_back(fmt::format("{:.4f}", simulated_rate(row, "interleaved")));
    table.push_back(cells);
  }
  if (e.prints())
    fmt::print(
        "\nBubble rates from the Zero Bubble paper's times; interleaved by its closed form, and with every message "
        "waited for\n{}",
        format_table(table, "rrrrrrrr"));
}

}  // namespace ref5d::pipeline
