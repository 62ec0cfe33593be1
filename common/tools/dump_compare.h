// Compares two dumps tensor by tensor, in the order of computation.
#pragma once

#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "common/io/safetensors.h"
#include "common/tools/dump_order.h"

namespace ref5d {

struct CompareSettings {
  // Of the relative error; none: by the coarsest dtype of the two, in which it is written or was computed (default_tolerance).
  std::optional<double> tolerance;
  bool bitwise = false;  // ask for identical dtype, shape and bytes instead
  std::string only;      // tensors whose names begin so; empty: all
};

// 1e-11 (fp64), 1e-5 (fp32), 2e-2 (bf16), 0 (int32).
[[nodiscard]] double default_tolerance(Dtype dtype);

struct TensorComparison {
  std::string name;
  DumpSection section = DumpSection::kOther;
  std::string shape;      // "[2, 64]" of B, or of A where B lacks it
  bool measured = false;  // whether both sides have it in one shape, so that the errors mean something
  double relative =
      0;  // ||a - b||_2 / max(||b||_2, floor), floors as in common/verify/compare.h per group (grad/, final/, ...)
  double max_abs = 0;
  double tolerance = 0;
  bool departs = false;
  std::string note;  // where the largest difference is, or what is wrong
};

struct DumpComparison {
  std::vector<TensorComparison> rows;  // by depth
  std::vector<std::string> notes;      // remarks that do not count as departing
};

// Compares A with the reference B; one tensor of each is held at a time. Tensors that one side lacks and different shapes
// depart. InputError if neither has a tensor to compare.
[[nodiscard]] DumpComparison compare_dumps(const SafetensorsFile& a, const SafetensorsFile& b, const CompareSettings& settings);

// A table, the notes, and the first tensor that departs. Beyond 200 tensors the table holds those that depart, unless `all`.
[[nodiscard]] std::string comparison_text(const DumpComparison& comparison, bool all);

// The program `compare A B [--tolerance T] [--bitwise] [--only PREFIX] [--all]`: prints to out (errors: one line to err).
// Returns its exit status: 0 all within tolerance, 1 some depart, 2 bad usage or input.
[[nodiscard]] int run_compare(int argc, const char* const* argv, std::FILE* out, std::FILE* err);

}  // namespace ref5d
