#include "common/tools/kernel_program.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "common/app/command_line.h"
#include "common/device/device.h"
#include "common/device/error.h"
#include "common/io/file.h"
#include "common/io/json.h"
#include "common/tools/kernel_bench.h"
#include "common/tools/kernel_compare.h"
#include "common/tools/kernel_coverage.h"
#include "common/verify/table.h"

namespace ref5d {
namespace {

struct Settings {
  std::string write, compare, only, json, against, size = "large";
  bool bench = false, coverage = false, blas = true, nan = true;
  std::optional<std::string> dtype;
  std::int64_t rounds = 3;
  [[nodiscard]] CaseFill fill() const { return nan ? CaseFill::kNan : CaseFill::kNothing; }
};

ParseOutcome parse(Settings& s, int argc, const char* const* argv, std::FILE* out) {
  CommandLine line("kernels",
                   "Runs every kernel on the same inputs in every build: writes its values, compares them with those of "
                   "another build, or measures its time.");
  line.group("What to do (one of them)");
  line.add_option("--write", s.write, "write the values of the small cases (safetensors)", "FILE");
  line.add_option("--compare", s.compare, "compare them with those that another build wrote", "FILE");
  line.add_flag("--bench", s.bench, "time the large cases");
  line.add_flag("--coverage", s.coverage, "fail if the small cases leave out a kernel of the source");
  line.group("Cases");
  line.add_option("--only", s.only, "those with this in their name, such as attention or 3x300/bf16");
  line.add_choice("--dtype", s.dtype, "those of a dtype; default: all, with --bench fp32", {"fp64", "fp32", "bf16"});
  line.add_switch("--blas", s.blas, "also those that call a library's matrix product");
  line.add_switch("--nan", s.nan,
                  "fill what a kernel overwrites with NaN, which shows an element that nobody wrote; without, a tool that "
                  "watches memory sees it");
  line.group("Output and time");
  line.add_option("--json", s.json, "write the results here, too", "FILE");
  line.add_choice("--size", s.size, "with --bench: the size of the cases; small ones have no bound", {"small", "large"});
  line.add_option("--against", s.against,
                  "with --size small: what --json of another build wrote, to compare each kernel's time", "FILE");
  line.add_option("--rounds", s.rounds, "with --bench: how often each operation is timed; the median counts", {1, 1000});
  if (line.parse(argc, argv, out) == ParseOutcome::kEnd) return ParseOutcome::kEnd;
  if (int{!s.write.empty()} + int{!s.compare.empty()} + int{s.bench} + int{s.coverage} != 1)
    throw InputError("give one of --write FILE, --compare FILE, --bench and --coverage");
  if (!s.against.empty() && (!s.bench || s.size != "small"))
    throw InputError("--against compares times of the small cases; give --bench --size small with it");
  return ParseOutcome::kRun;
}

std::vector<KernelCase> chosen_cases(const Settings& s, CaseSize size) {
  const std::string dtype = s.dtype.value_or(s.bench ? "fp32" : "");
  std::vector<KernelCase> cases = kernel_cases(size);
  std::erase_if(cases, [&](const KernelCase& one) {
    const bool other_dtype = !dtype.empty() && one.dtype != Dtype::kInt32 && dtype != dtype_name(one.dtype);
    return other_dtype || (one.blas && !s.blas) || one.label().find(s.only) == std::string::npos;
  });
  if (cases.empty()) throw InputError(fmt::format("no case has '{}' in its name with these flags", printable(s.only)));
  return cases;
}

Json head_of_report() {
  return Json::object({{"program", "kernels"}, {"mode", Device::mode()}, {"device", Device::description()}});
}

void write_report(const std::string& path, const Json& report) {
  if (!path.empty()) write_file(path, report.dump(2) + "\n");
}

int write_all(const Settings& s, std::FILE* out) {
  std::vector<CaseValue> values;
  for (const KernelCase& one : chosen_cases(s, CaseSize::kSmall))
    std::ranges::move(run_case(one, s.fill()), std::back_inserter(values));
  write_values(s.write, values);
  fmt::print(out, "{} values written to {}\n", values.size(), s.write);
  return kExitOk;
}

Json json_of(const ValueComparison& c) {
  return Json::object({{"name", c.name}, {"error", c.error}, {"limit", c.limit}, {"pass", c.pass}, {"note", c.note}});
}

int compare_all(const Settings& s, std::FILE* out) {
  const SafetensorsFile reference = open_values(s.compare);
  std::vector<std::vector<std::string>> table{{"case", "dtype", "worst error", "limit", "of", ""}};
  Json report = head_of_report();
  Json& rows = report["values"] = Json::array();
  std::string failures;
  int failed = 0, count = 0;
  for (const KernelCase& one : chosen_cases(s, CaseSize::kSmall)) {
    const std::vector<ValueComparison> outputs = compare_case(one, reference, s.fill());
    const ValueComparison& worst = worst_of(outputs);
    table.push_back({one.name, dtype_name(one.dtype), scientific(worst.error), scientific(worst.limit),
                     worst.name.substr(one.label().size() + 1), worst.pass ? "ok" : "FAIL"});
    for (const ValueComparison& c : outputs) {
      rows.push_back(json_of(c));
      ++count;
      if (c.pass) continue;
      ++failed;
      failures += fmt::format("FAIL {}: error {}, limit {}{}\n", c.name, scientific(c.error), scientific(c.limit),
                              c.note.empty() ? "" : "; " + c.note);
    }
  }
  write_report(s.json, report);
  fmt::print(out, "{}{}{} of {} values within their limits of {}'s\n", format_table(table, "llrrll"), failures, count - failed,
             count, reference.metadata().at("mode"));
  return failed == 0 ? kExitOk : kExitCheckFailed;
}

int check_coverage(const Settings& s, std::FILE* out) {
  const std::set<std::string> launched = kernels_launched(chosen_cases(s, CaseSize::kSmall));
  int missing = 0;
  const std::set<std::string> all = kernels_in_source(REF5D_SOURCE_DIR);
  for (const std::string& name : all) {
    if (launched.contains(name)) continue;
    fmt::print(out, "FAIL {}: no case launches it\n", name);
    ++missing;
  }
  fmt::print(out, "{} of {} kernels are launched\n", static_cast<int>(all.size()) - missing, all.size());
  return missing == 0 ? kExitOk : kExitCheckFailed;
}

Json json_of(const StepTime& t) {
  Json kernels = Json::array();
  for (const auto& [name, total] : t.kernels)
    kernels.push_back(Json::object({{"name", name}, {"calls", total.calls}, {"ms", total.us / 1e3}}));
  return Json::object(
      {{"case", t.label}, {"op", t.op}, {"ms", t.ms}, {"bytes", t.bytes}, {"flops", t.flops}, {"kernels", kernels}});
}

std::string speed_of(double per_ms, const char* unit) { return fmt::format("{:.1f} {:<7}", per_ms / 1e6, unit); }

std::vector<std::string> row_of(const StepTime& t, const MachineRates& rates) {
  const std::string speed = t.bound_by_flops(rates) ? speed_of(t.flops / t.ms, "GFLOP/s") : speed_of(t.bytes / t.ms, "GB/s");
  return {t.label, t.op, fmt::format("{:.3f}", t.ms), speed, fmt::format("{:.0f}%", 100 * t.bound_ms(rates) / t.ms)};
}

// The time of all operations, by kernel without its template arguments.
std::map<std::string, double> ms_by_kernel(const Json& report) {
  std::map<std::string, double> ms;
  for (const Json& operation : report.at("operations").items()) {
    for (const Json& kernel : operation.at("kernels").items()) {
      const std::string& name = kernel.at("name").as_string();
      ms[name.substr(0, name.find('<'))] += kernel.at("ms").as_double();
    }
  }
  return ms;
}

// Each kernel's time beside the one in the file, where both have it.
std::string compared_times(const Json& here, const std::string& path) {
  const Json there = Json::parse(read_file(path), path);
  const std::map<std::string, double> own = ms_by_kernel(here), other = ms_by_kernel(there);
  std::vector<std::vector<std::string>> table{
      {"kernel", there.at("mode").as_string() + " ms", Device::mode() + " ms", "times as long"}};
  for (const auto& [name, ms] : own) {
    const auto found = other.find(name);
    if (found == other.end() || found->second <= 0) continue;
    const double ratio = ms / found->second;
    table.push_back({name, fmt::format("{:.4f}", found->second), fmt::format("{:.3f}", ms), fmt::format("{:.0f}", ratio)});
  }
  return format_table(table, "lrrr");
}

// Small cases take no time on any machine that could be set against its rates: they show what one build costs beside another.
int bench_small(const Settings& s, std::FILE* out) {
  Json report = head_of_report();
  Json& rows = report["operations"] = Json::array();
  std::vector<std::vector<std::string>> table{{"case", "operation", "ms"}};
  for (const KernelCase& one : chosen_cases(s, CaseSize::kSmall)) {
    for (const StepTime& t : time_case(one, static_cast<int>(s.rounds), false)) {
      rows.push_back(json_of(t));
      table.push_back({t.label, t.op, fmt::format("{:.4f}", t.ms)});
    }
  }
  write_report(s.json, report);
  fmt::print(out, "{}", s.against.empty() ? format_table(table, "llr") : compared_times(report, s.against));
  return kExitOk;
}

int bench_large(const Settings& s, std::FILE* out) {
  const std::vector<KernelCase> cases = chosen_cases(s, CaseSize::kLarge);
  const Dtype dtype = s.dtype == "fp64" ? Dtype::kFp64 : s.dtype == "bf16" ? Dtype::kBf16 : Dtype::kFp32;
  // Before and after the cases: others may use the machine.
  MachineRates rates = measure_rates(dtype);
  std::vector<StepTime> times;
  for (const KernelCase& one : cases)
    std::ranges::move(time_case(one, static_cast<int>(s.rounds), true), std::back_inserter(times));
  const MachineRates later = measure_rates(dtype);
  rates = {std::max(rates.bytes_per_s, later.bytes_per_s), std::max(rates.flops_per_s, later.flops_per_s)};

  Json report = head_of_report();
  report["dtype"] = dtype_name(dtype);
  report["bytes_per_s"] = rates.bytes_per_s;
  report["flops_per_s"] = rates.flops_per_s;
  Json& rows = report["operations"] = Json::array();
  std::vector<std::vector<std::string>> table{{"case", "operation", "ms", "speed", "of the bound"}};
  for (const StepTime& t : times) {
    rows.push_back(json_of(t))["bound_ms"] = t.bound_ms(rates);
    table.push_back(row_of(t, rates));
  }
  write_report(s.json, report);
  fmt::print(out, "{}\n{}, {}: memory moves {:.1f} GB/s, the library's product runs at {:.1f} GFLOP/s\n",
             format_table(table, "llrrr"), dtype_name(dtype), Device::description(), rates.bytes_per_s / 1e9,
             rates.flops_per_s / 1e9);
  return kExitOk;
}

}  // namespace

int run_kernels(int argc, const char* const* argv, std::FILE* out) {
  Settings s;
  if (parse(s, argc, argv, out) == ParseOutcome::kEnd) return kExitOk;
  if (!s.write.empty()) return write_all(s, out);
  if (!s.compare.empty()) return compare_all(s, out);
  if (s.coverage) return check_coverage(s, out);
  return s.size == "small" ? bench_small(s, out) : bench_large(s, out);
}

}  // namespace ref5d
