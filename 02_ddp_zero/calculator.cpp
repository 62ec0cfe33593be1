#include "02_ddp_zero/calculator.h"

#include <fmt/format.h>

#include <cmath>

#include "02_ddp_zero/experiments.h"
#include "common/verify/table.h"

namespace ref5d::data_parallel {

double bytes_per_parameter(const StateBytes& b, int stage, double devices) {
  const auto held = [&](double bytes, int from_stage) { return stage >= from_stage ? bytes / devices : bytes; };
  return held(b.weights, 3) + held(b.gradients, 2) + held(b.optimizer, 1);
}

namespace {

// ZeRO paper, Table 1: gigabytes per device, for stages 1 / 2 / 3. The paper rounds, or cuts, to what is written here.
struct PaperRow {
  int devices;
  double gb[3][3];  // 7.5, 128 and 1000 billion parameters, by stage
};
constexpr PaperRow kPaper[] = {{1, {{120, 120, 120}, {2048, 2048, 2048}, {16000, 16000, 16000}}},
                               {4, {{52.5, 41.3, 30}, {896, 704, 512}, {7000, 5500, 4000}}},
                               {16, {{35.6, 21.6, 7.5}, {608, 368, 128}, {4750, 2875, 1000}}},
                               {64, {{31.4, 16.6, 1.88}, {536, 284, 32}, {4187, 2218, 250}}},
                               {256, {{30.4, 15.4, 0.47}, {518, 263, 8}, {4046, 2054, 62.5}}},
                               {1024, {{30.1, 15.1, 0.12}, {513, 257, 2}, {4011, 2013, 15.6}}}};
constexpr double kBillions[] = {7.5, 128, 1000};
// The paper rounds or cuts, so a value is known to one of its last digit (or of the ones).
double digit(double value) {
  for (double d : {1.0, 0.1}) {
    const double digits = value / d;
    if (std::abs(digits - std::round(digits)) < 1e-9) return d;
  }
  return 0.01;
}

void paper_table(Experiment& e) {
  std::vector<std::vector<std::string>> rows{{"devices"}};
  for (double b : kBillions)
    for (int stage = 1; stage <= 3; ++stage) rows[0].push_back(fmt::format("{}B stage {}", b, stage));
  for (const PaperRow& paper : kPaper) {
    rows.push_back({fmt::format("{}", paper.devices)});
    for (int m = 0; m < 3; ++m) {
      for (int stage = 1; stage <= 3; ++stage) {
        const double gb = kBillions[m] * bytes_per_parameter(StateBytes(), stage, paper.devices);
        rows.back().push_back(fmt::format("{:.5g}", gb));
        e.report.claims.push_back(make_claim(fmt::format("ZeRO paper, table 1: {}B parameters, {} device{}, stage {}",
                                                         kBillions[m], paper.devices, paper.devices == 1 ? "" : "s", stage),
                                             paper.gb[m][stage - 1], gb, digit(paper.gb[m][stage - 1]) / paper.gb[m][stage - 1],
                                             "GB"));
      }
    }
  }
  if (e.prints())
    fmt::print("\nGB per device at {} bytes per parameter (ZeRO paper, table 1)\n{}", StateBytes().total(),
               format_table(rows, "rrrrrrrrrr"));
}

void eight_billion(Experiment& e) {
  constexpr double kParameters = 8;
  constexpr int kDevices = 8;
  std::vector<std::vector<std::string>> rows{{"stage", "GB per device", "of stage 0"}};
  const double whole = kParameters * bytes_per_parameter(kTwentyBytes, 0, kDevices);
  for (int stage = 0; stage <= 3; ++stage) {
    const double gb = kParameters * bytes_per_parameter(kTwentyBytes, stage, kDevices);
    rows.push_back({fmt::format("{}", stage), fmt::format("{:.4g}", gb), fmt::format("{:.1f}%", 100 * gb / whole)});
  }
  e.report.claims.push_back(make_claim("8B parameters at 20 bytes, one device", 160, whole, 0, "GB"));
  e.report.claims.push_back(make_claim("8B parameters at 20 bytes, 8 devices, stage 3", 20,
                                       kParameters * bytes_per_parameter(kTwentyBytes, 3, kDevices), 0, "GB"));
  // 16 / (2 + 14 / N) grows towards 8: what is never sharded is the 2 bytes of weights.
  const double limit = StateBytes().total() / bytes_per_parameter(StateBytes(), 2, 1e9);
  e.report.claims.push_back(make_claim("stage 2 saves up to, as devices grow", 8, limit, 1e-6, "x"));
  if (e.prints())
    fmt::print("\n8 billion parameters at {} bytes on {} devices\n{}", kTwentyBytes.total(), kDevices,
               format_table(rows, "rrr"));
}

}  // namespace

void calculator_experiment(Experiment& e) {
  if (!e.world.is_root()) return;
  paper_table(e);
  eight_billion(e);
}

}  // namespace ref5d::data_parallel
