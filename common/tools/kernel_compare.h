// The kernels' values in this build against those that another build wrote.
#pragma once

#include <string>
#include <vector>

#include "common/io/safetensors.h"
#include "common/tools/kernel_cases.h"

namespace ref5d {

struct ValueComparison {
  std::string name;  // "rmsnorm/65x33/fp32/y"
  double error = 0;  // ||a - b||_2 / ||b||_2; infinite if the two cannot be compared
  double limit = 0;  // 0 where bits are compared
  bool pass = false;
  std::string note;  // why it does not pass, if that is no number
};

// How far a value of this precision (none: bits) with so many elements may be from another build's: 0, 1e-13 (fp64), 1e-6
// (fp32), and for bf16 what roundings that fall the other way amount to.
[[nodiscard]] double value_limit(std::optional<Dtype> precision, std::int64_t elements);

// Of `value` against the reference. An infinity must stand where the reference has it, and then counts as equal; a NaN equals
// nothing.
[[nodiscard]] double value_error(const HostTensor& value, const HostTensor& reference);

// For a file that the values are written to and read from: what it is, in its metadata.
void write_values(const std::string& path, const std::vector<CaseValue>& values);
// InputError if the file is missing or is something else.
[[nodiscard]] SafetensorsFile open_values(const std::string& path);

[[nodiscard]] ValueComparison compare_value(const CaseValue& value, const SafetensorsFile& reference);
// Runs the case and compares each of its outputs.
[[nodiscard]] std::vector<ValueComparison> compare_case(const KernelCase& one, const SafetensorsFile& reference,
                                                        CaseFill fill = CaseFill::kNan);
// The one of a case's outputs that has come nearest to its limit, or is furthest beyond it.
[[nodiscard]] const ValueComparison& worst_of(const std::vector<ValueComparison>& outputs);

}  // namespace ref5d
