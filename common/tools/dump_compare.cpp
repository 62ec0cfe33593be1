#include "common/tools/dump_compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "common/app/command_line.h"
#include "common/app/program.h"
#include "common/device/error.h"
#include "common/verify/compare.h"
#include "common/verify/table.h"

namespace ref5d {
namespace {

constexpr std::size_t kMaxRows = 200;  // of the table, unless all are asked for
constexpr std::size_t kMaxNotes = 8;   // about metadata
constexpr std::size_t kMaxValue = 60;  // characters of a metadata value in a note

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::vector<std::string> sizes;
  for (std::int64_t size : shape) sizes.push_back(fmt::format("{}", size));
  return fmt::format("[{}]", join(sizes, ", "));
}

// One element is one element, whether it is written as [] or as [1].
bool same_shape(const HostTensor& a, const HostTensor& b) { return a.shape == b.shape || (a.numel() == 1 && b.numel() == 1); }

// "[0, 3, 17]" of a flat index.
std::string position_text(std::int64_t index, const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> position(shape.size());
  for (std::size_t d = shape.size(); d-- > 0;) {
    position[d] = index % shape[d];
    index /= shape[d];
  }
  return shape_text(position);
}

// Tensors with one prefix share a scale: "grad" of "grad/lm_head.weight".
std::string group_of(const std::string& name) { return name.substr(0, std::min(name.find('/'), name.size())); }

// Whether a run computed it, and not merely read or drew it.
bool is_computed(const std::string& name, DumpSection section) {
  return name == "step_loss" || section == DumpSection::kForward || section == DumpSection::kBackward ||
         section == DumpSection::kFinal;
}

CompareKind kind_of_group(const std::string& group) {
  if (group == "grad" || group == "sub_grad") return CompareKind::kGradient;
  return group == "final" || group == "init" ? CompareKind::kParameter : CompareKind::kActivation;
}

std::map<std::string, Floors> floors_of(const SafetensorsFile& b) {
  std::map<std::string, NormSum> sums;
  for (const std::string& name : b.names()) sums[group_of(name)].add(b.read(name).to_doubles());
  std::map<std::string, Floors> floors;
  for (const auto& [group, sum] : sums) floors.emplace(group, Floors(kind_of_group(group), sum));
  return floors;
}

// How many elements differ in any bit.
std::int64_t differing_elements(const HostTensor& a, const HostTensor& b) {
  const std::size_t size = dtype_size(a.dtype);
  std::int64_t count = 0;
  for (std::size_t at = 0; at < a.data.size(); at += size) {
    const auto first = a.data.begin() + static_cast<std::ptrdiff_t>(at);
    if (!std::equal(first, first + static_cast<std::ptrdiff_t>(size), b.data.begin() + static_cast<std::ptrdiff_t>(at)))
      ++count;
  }
  return count;
}

void judge_bitwise(const HostTensor& a, const HostTensor& b, TensorComparison& row) {
  if (a.dtype != b.dtype || a.shape != b.shape) {
    row.departs = true;
    row.note =
        fmt::format("{}{} in A, {}{} in B", dtype_name(a.dtype), shape_text(a.shape), dtype_name(b.dtype), shape_text(b.shape));
    return;
  }
  const std::int64_t differing = differing_elements(a, b);
  row.departs = differing > 0;
  if (row.departs) row.note = fmt::format("{} of {} elements differ", differing, a.numel());
}

void judge_by_tolerance(const HostTensor& a, const HostTensor& b, const TensorError& error, TensorComparison& row) {
  row.departs = !(row.relative <= row.tolerance);
  if (row.departs) {
    row.note = fmt::format("{} at {}", std::isfinite(error.relative) ? "largest" : "not comparable",
                           position_text(error.worst_index, b.shape));
  } else if (a.dtype != b.dtype) {
    row.note = fmt::format("{} in A, {} in B", dtype_name(a.dtype), dtype_name(b.dtype));
  }
}

// The dtype that a dump was computed in: as its metadata says, else the coarsest in which it holds something computed. A loss
// is written in fp64 whatever computed it.
Dtype computed_in(const SafetensorsFile& file, const DumpOrder& order) {
  constexpr Dtype kFineToCoarse[] = {Dtype::kFp64, Dtype::kFp32, Dtype::kBf16};
  const auto said = file.metadata().find("dtype");
  Dtype coarsest = Dtype::kFp64;
  for (Dtype dtype : kFineToCoarse) {
    if (said != file.metadata().end() && said->second == dtype_name(dtype)) return dtype;
    for (const std::string& name : file.names()) {
      if (is_computed(name, order.place(name).section) && file.info(name).dtype == safetensors_dtype(dtype)) coarsest = dtype;
    }
  }
  return coarsest;
}

// The row of a tensor that both have. `computed`: the tolerance of what computed it.
void compare_tensor(const HostTensor& a, const HostTensor& b, double floor, double computed, const CompareSettings& settings,
                    TensorComparison& row) {
  row.shape = shape_text(b.shape);
  if (!same_shape(a, b)) {
    row.departs = true;
    row.note = fmt::format("shape {} in A, {} in B", shape_text(a.shape), shape_text(b.shape));
    return;
  }
  const TensorError error = tensor_error(a.to_doubles(), b.to_doubles(), floor);
  row.measured = true;
  row.relative = error.relative;
  row.max_abs = error.max_abs;
  const bool integers = a.dtype == Dtype::kInt32 || b.dtype == Dtype::kInt32;
  const double by_dtype = std::max({default_tolerance(a.dtype), default_tolerance(b.dtype), computed});
  row.tolerance = integers || settings.bitwise ? 0 : settings.tolerance.value_or(by_dtype);
  if (settings.bitwise) {
    judge_bitwise(a, b, row);
  } else {
    judge_by_tolerance(a, b, error, row);
  }
}

// A value around the place where it differs from the other side.
std::string excerpt(const std::string& value, std::size_t differs_at) {
  const std::size_t start = differs_at < kMaxValue / 2 ? 0 : std::min(value.size(), differs_at) - kMaxValue / 2;
  return (start > 0 ? "..." : "") + printable(value.substr(start, kMaxValue)) + (start + kMaxValue < value.size() ? "..." : "");
}

void note_metadata(const SafetensorsFile& a, const SafetensorsFile& b, std::vector<std::string>& notes) {
  std::map<std::string, std::string> in_a(a.metadata().begin(), a.metadata().end());
  std::map<std::string, std::string> in_b(b.metadata().begin(), b.metadata().end());
  for (const auto& [key, value] : in_b) in_a.try_emplace(key, "absent");
  for (const auto& [key, value] : in_a) {
    const std::string& other = in_b.try_emplace(key, "absent").first->second;
    if (value == other || notes.size() >= kMaxNotes) continue;
    const auto differs = std::mismatch(value.begin(), value.end(), other.begin(), other.end()).first;
    const auto at = static_cast<std::size_t>(differs - value.begin());
    notes.push_back(fmt::format("metadata {}: {} in A, {} in B", printable(key), excerpt(value, at), excerpt(other, at)));
  }
}

// Departing initial weights or tokens explain everything else, although they are listed last.
void note_different_start(DumpComparison& comparison) {
  for (const TensorComparison& row : comparison.rows) {
    const bool start =
        row.section == DumpSection::kInitial || row.name == "tokens" || row.name == "labels" || row.name == "doc_ids";
    if (!start || !row.departs || !row.measured) continue;
    comparison.notes.push_back(
        fmt::format("the two do not start alike: {} differs, which explains what follows from it", row.name));
    return;
  }
}

std::string table_of(const std::vector<TensorComparison>& rows, bool departing_only) {
  std::vector<std::vector<std::string>> cells{{"tensor", "shape", "relative error", "max |a-b|", "tolerance", "", ""}};
  for (const TensorComparison& row : rows) {
    if (departing_only && !row.departs) continue;
    cells.push_back({printable(row.name), row.shape, row.measured ? scientific(row.relative) : "-",
                     row.measured ? scientific(row.max_abs) : "-", row.measured ? scientific(row.tolerance) : "-",
                     row.departs ? "DEPARTS" : "ok", row.note});
  }
  return cells.size() == 1 ? "" : format_table(cells, "llrrrll");
}

std::string describe(const TensorComparison& row) {
  if (!row.measured) return fmt::format("{} ({})", printable(row.name), row.note);
  return fmt::format("{} (relative error {}, tolerance {}; {})", printable(row.name), scientific(row.relative),
                     scientific(row.tolerance), row.note);
}

}  // namespace

double default_tolerance(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFp64: return 1e-11;
    case Dtype::kFp32: return 1e-5;
    case Dtype::kBf16: return 2e-2;
    case Dtype::kInt32: return 0;
  }
  return 0;
}

DumpComparison compare_dumps(const SafetensorsFile& a, const SafetensorsFile& b, const CompareSettings& settings) {
  const std::vector<std::string> names_a(a.names()), names_b(b.names());
  const std::set<std::string> in_a(names_a.begin(), names_a.end()), in_b(names_b.begin(), names_b.end());
  std::set<std::string> either = in_a;
  either.insert(in_b.begin(), in_b.end());
  std::vector<std::string> names(either.begin(), either.end());
  std::erase_if(names, [&](const std::string& name) { return !name.starts_with(settings.only); });
  if (names.empty() && settings.only.empty()) throw InputError("neither file holds a tensor; give two dumps written by --dump");
  if (names.empty()) throw InputError("no tensor's name begins with " + settings.only + "; give a prefix such as grad/");
  const DumpOrder order(names);
  const std::map<std::string, Floors> floors = floors_of(b);
  const double computed = std::max(default_tolerance(computed_in(a, order)), default_tolerance(computed_in(b, order)));
  DumpComparison comparison;
  for (const std::string& name : sort_by_depth(names)) {
    TensorComparison row;
    row.name = name;
    row.section = order.place(name).section;
    if (in_a.contains(name) && in_b.contains(name)) {
      const HostTensor reference = b.read(name);
      compare_tensor(a.read(name), reference, floors.at(group_of(name)).of(reference.numel()),
                     is_computed(name, row.section) ? computed : 0, settings, row);
      const std::string &in_file_a = a.info(name).dtype, &in_file_b = b.info(name).dtype;
      if (settings.bitwise && in_file_a != in_file_b) {  // one may have been converted as it was read
        row.departs = true;
        row.note = fmt::format("{} in A, {} in B", in_file_a, in_file_b);
      }
    } else {
      const bool only_a = in_a.contains(name);
      row.shape = shape_text((only_a ? a : b).info(name).shape);
      row.departs = true;
      row.note = only_a ? "only in A" : "only in B";
    }
    comparison.rows.push_back(std::move(row));
  }
  note_metadata(a, b, comparison.notes);
  note_different_start(comparison);
  return comparison;
}

std::string comparison_text(const DumpComparison& comparison, bool all) {
  const std::vector<TensorComparison>& rows = comparison.rows;
  const bool cut = !all && rows.size() > kMaxRows;
  std::string text = table_of(rows, cut);
  const auto departing = std::count_if(rows.begin(), rows.end(), [](const TensorComparison& r) { return r.departs; });
  if (cut) {
    text += fmt::format("{} tensors within tolerance are not listed; --all lists them\n",
                        rows.size() - static_cast<std::size_t>(departing));
  }
  for (const std::string& note : comparison.notes) text += "note: " + note + "\n";
  if (departing == 0) return text + fmt::format("all {} tensors agree\n", rows.size());
  text += fmt::format("{} of {} tensors depart\n", departing, rows.size());
  const auto first = std::find_if(rows.begin(), rows.end(), [](const TensorComparison& r) { return r.departs; });
  text += fmt::format("first that departs: {}\n", describe(*first));
  if (first->measured) return text;
  // A missing tensor says nothing about values: name the first whose values differ as well.
  const auto differs =
      std::find_if(rows.begin(), rows.end(), [](const TensorComparison& r) { return r.departs && r.measured; });
  if (differs != rows.end()) return text + fmt::format("first whose values depart: {}\n", describe(*differs));
  const auto common = std::count_if(rows.begin(), rows.end(), [](const TensorComparison& r) { return r.measured; });
  return text + (common == 0 ? "no tensor is in both\n" : fmt::format("the {} tensors that both have agree\n", common));
}

namespace {
void flush(std::FILE* out) {
  if (std::fflush(out) == 0 && std::ferror(out) == 0) return;
  throw RunError("cannot write to stdout: the disk is full or the reader is gone");
}
}  // namespace

int run_compare(int argc, const char* const* argv, std::FILE* out, std::FILE* err) try {
  CommandLine line(
      "compare",
      "Compares two dumps (safetensors) tensor by tensor, in the order of computation, and names the first that departs.");
  std::string a, b;
  CompareSettings settings;
  bool all = false;
  line.add_positional("A", a, "a dump");
  line.add_positional("B", b, "the reference it is measured against");
  line.add_option("--tolerance", settings.tolerance,
                  "largest relative error; default, by what computed it: 1e-11 fp64, 1e-5 fp32, 2e-2 bf16", {.min = 0});
  line.add_flag("--bitwise", settings.bitwise, "ask for identical bytes");
  line.add_option("--only", settings.only, "compare the tensors whose names begin so, such as grad/", "PREFIX");
  line.add_flag("--all", all, "list every tensor, however many there are");
  if (line.parse(argc, argv, out) == ParseOutcome::kEnd) {
    flush(out);
    return kExitOk;
  }
  if (settings.bitwise && settings.tolerance)
    throw InputError("--bitwise and --tolerance contradict each other; give one of them");
  const SafetensorsFile file_a(a), file_b(b);
  const DumpComparison comparison = compare_dumps(file_a, file_b, settings);
  fmt::print(out, "A: {}\nB: {} (the reference)\n{}", a, b, comparison_text(comparison, all));
  flush(out);
  const bool departs =
      std::any_of(comparison.rows.begin(), comparison.rows.end(), [](const TensorComparison& r) { return r.departs; });
  return departs ? kExitCheckFailed : kExitOk;
} catch (const InputError& e) {
  std::fputs(error_line("compare", e.what()).c_str(), err);
  return kExitBadInput;
} catch (const std::bad_alloc&) {
  std::fputs(error_line("compare", "out of memory: a tensor of each file must fit").c_str(), err);
  return kExitBroken;
} catch (const std::exception& e) {
  std::fputs(error_line("compare", e.what()).c_str(), err);
  return kExitBroken;
}

}  // namespace ref5d
