#include "common/tools/kernel_compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "common/device/device.h"
#include "common/device/error.h"

namespace ref5d {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kFp64Limit = 1e-13, kFp32Limit = 1e-6;
constexpr const char* kFormat = "ref5d kernels";

// Both builds carry the value in fp32, to within kFp32Limit of its size, and round it once. bf16 numbers lie 2^-8 to 2^-7 of a
// value's size apart, and the two roundings differ where the middle between two of them lies in an interval of twice
// kFp32Limit: for at most 2 * kFp32Limit / 2^-8 = 5.1e-4 of the elements, and then by one spacing. So the mean square of the
// error is at most 5.1e-4 * (2^-7)^2 of the elements'. Of a few elements that is less than one: one difference must be allowed,
// which may fall on an element of up to four times the typical size, and adds 4^2 / elements to the share.
double bf16_limit(std::int64_t elements) {
  constexpr double kSpacing = 1.0 / 128, kShare = 2 * kFp32Limit * 256;
  return kSpacing * std::sqrt(kShare + 16.0 / static_cast<double>(std::max<std::int64_t>(elements, 1)));
}

// How far a comparison is in use of its limit.
double share_of_limit(const ValueComparison& c) {
  if (!c.pass) return kInfinity;
  return c.limit > 0 ? c.error / c.limit : 0;
}

std::string shape_of(const HostTensor& t) { return to_string(t.shape) + " " + dtype_name(t.dtype); }

}  // namespace

double value_limit(std::optional<Dtype> precision, std::int64_t elements) {
  if (!precision || *precision == Dtype::kInt32) return 0;
  return *precision == Dtype::kFp64 ? kFp64Limit : *precision == Dtype::kFp32 ? kFp32Limit : bf16_limit(elements);
}

double value_error(const HostTensor& value, const HostTensor& reference) {
  if (value.shape != reference.shape) return kInfinity;
  const std::vector<double> a = value.to_doubles(), b = reference.to_doubles();
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::isinf(b[i]) && a[i] == b[i]) continue;
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  if (difference == 0) return 0;
  const double error = std::sqrt(difference / norm);
  if (std::isnan(error)) return kInfinity;
  return error;
}

void write_values(const std::string& path, const std::vector<CaseValue>& values) {
  NamedTensors tensors;
  for (const CaseValue& v : values) {
    if (!tensors.emplace(v.name, v.value).second) throw std::logic_error("two kernel cases are called " + v.name);
  }
  write_safetensors(path, tensors, {{"format", kFormat}, {"mode", Device::mode()}, {"device", Device::description()}});
}

SafetensorsFile open_values(const std::string& path) {
  SafetensorsFile file(path);
  const auto format = file.metadata().find("format");
  if (format == file.metadata().end() || format->second != kFormat)
    throw InputError(fmt::format("{} does not hold the kernels' values; write them with kernels --write FILE", path));
  return file;
}

ValueComparison compare_value(const CaseValue& value, const SafetensorsFile& reference) {
  ValueComparison c;
  c.name = value.name;
  c.limit = value_limit(value.precision, value.value.numel());
  c.error = kInfinity;
  if (!reference.contains(value.name)) {
    c.note = "not in the file: it is of another version";
    return c;
  }
  const HostTensor expected = reference.read(value.name);
  if (expected.shape != value.value.shape || expected.dtype != value.value.dtype) {
    c.note = fmt::format("{} here, {} in the file", shape_of(value.value), shape_of(expected));
    return c;
  }
  c.error = value_error(value.value, expected);
  // Of bits a difference in the sign of zero would be one too.
  c.pass = value.precision ? c.error <= c.limit : value.value.data == expected.data;
  if (!c.pass && !value.precision) c.note = "must be equal in every bit";
  return c;
}

std::vector<ValueComparison> compare_case(const KernelCase& one, const SafetensorsFile& reference, CaseFill fill) {
  std::vector<ValueComparison> outputs;
  for (const CaseValue& value : run_case(one, fill)) outputs.push_back(compare_value(value, reference));
  return outputs;
}

const ValueComparison& worst_of(const std::vector<ValueComparison>& outputs) {
  return *std::max_element(outputs.begin(), outputs.end(), [](const ValueComparison& a, const ValueComparison& b) {
    return share_of_limit(a) < share_of_limit(b);
  });
}

}  // namespace ref5d
