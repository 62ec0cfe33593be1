#include "common/verify/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <limits>
#include <stdexcept>

namespace ref5d {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TensorError incomparable(std::int64_t index) { return {kInfinity, kInfinity, index}; }

// ||v||_2, scaled by the largest so that squares neither overflow nor vanish.
template <class ValueAt>
double scaled_norm(std::size_t n, double largest, const ValueAt& value_at) {
  if (largest == 0) return 0;
  double sum = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const double x = value_at(i) / largest;
    sum += x * x;
  }
  return largest * std::sqrt(sum);
}

void append(std::vector<double>& to, const std::vector<double>& from) { to.insert(to.end(), from.begin(), from.end()); }

struct Pool {
  std::vector<double> a, b;
  std::int64_t tensors = 0;
};

}  // namespace

TensorError tensor_error(std::span<const double> a, std::span<const double> b, double floor, double trim) {
  if (a.size() != b.size()) return incomparable(-1);
  TensorError error;
  double largest_b = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double diff = std::abs(a[i] - b[i]);
    if (!std::isfinite(diff)) return incomparable(static_cast<std::int64_t>(i));  // also two infinities: inf - inf is NaN
    if (diff > error.max_abs) {
      error.max_abs = diff;
      error.worst_index = static_cast<std::int64_t>(i);
    }
    largest_b = std::max(largest_b, std::abs(b[i]));
  }
  if (!std::isfinite(floor)) return incomparable(error.worst_index);
  std::vector<double> off(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) off[i] = std::abs(a[i] - b[i]);
  if (trim > 0) {
    const auto left_out = static_cast<std::size_t>(std::ceil(trim * static_cast<double>(a.size())));
    const std::size_t kept = a.size() > left_out ? a.size() - left_out : std::min<std::size_t>(a.size(), 1);
    std::nth_element(off.begin(), off.begin() + static_cast<std::ptrdiff_t>(kept), off.end());
    off.resize(kept);
  }
  const double distance = scaled_norm(off.size(), error.max_abs, [&](std::size_t i) { return off[i]; });
  const double scale = std::max(scaled_norm(b.size(), largest_b, [&](std::size_t i) { return b[i]; }), floor);
  error.relative = distance == 0 ? 0 : scale > 0 ? distance / scale : kInfinity;
  return error;
}

void NormSum::add(std::span<const double> values) {
  double largest = 0;
  for (double x : values) {
    if (!std::isfinite(x)) continue;
    largest = std::max(largest, std::abs(x));
    ++count_;
  }
  const auto value_at = [&](std::size_t i) { return std::isfinite(values[i]) ? values[i] : 0.0; };
  norm_ = std::hypot(norm_, scaled_norm(values.size(), largest, value_at));
}

Floors::Floors(CompareKind kind, const NamedValues& b) : kind_(kind) {
  for (const auto& [name, values] : b) all_.add(values);
}

double Floors::of(std::int64_t numel) const {
  if (kind_ == CompareKind::kGradient || kind_ == CompareKind::kActivation)
    return std::numeric_limits<double>::epsilon() / least_tolerance(Dtype::kFp64) * all_.norm();
  // sqrt(numel) * rms, rms = norm / sqrt(count).
  return all_.count() == 0 ? 0 : std::sqrt(static_cast<double>(numel) / static_cast<double>(all_.count())) * all_.norm();
}

std::string kind_of(std::string_view name) {
  std::string kind;
  std::size_t start = 0;
  while (start <= name.size()) {
    const std::size_t end = std::min(name.find_first_of("./", start), name.size());
    const std::string_view part = name.substr(start, end - start);
    const bool number = !part.empty() && std::all_of(part.begin(), part.end(), [](unsigned char c) { return std::isdigit(c); });
    kind += number ? "*" : part;
    if (end < name.size()) kind += name[end];
    start = end + 1;
  }
  return kind;
}

std::vector<NamedError> compare_sets(const NamedValues& a, const NamedValues& b, CompareKind kind) {
  const Floors floors(kind, b);
  const double trim = kind == CompareKind::kUpdate ? kUpdateTrim : 0;
  std::vector<NamedError> errors;
  std::map<std::string, Pool> pools;
  for (const auto& [name, reference] : b) {
    const auto found = a.find(name);
    if (found == a.end()) {
      errors.push_back({name, incomparable(-1), 1, "missing: only the reference has it"});
      continue;
    }
    const std::vector<double>& candidate = found->second;
    const auto numel = static_cast<std::int64_t>(reference.size());
    if (candidate.size() != reference.size()) {
      errors.push_back(
          {name, incomparable(-1), 1, fmt::format("{} elements, the reference has {}", candidate.size(), reference.size())});
    } else if (numel < kPoolBelow) {
      Pool& pool = pools[kind_of(name)];
      append(pool.a, candidate);
      append(pool.b, reference);
      ++pool.tensors;
    } else {
      errors.push_back({name, tensor_error(candidate, reference, floors.of(numel), trim), 1, ""});
    }
  }
  for (const auto& [name, candidate] : a) {
    if (!b.contains(name)) errors.push_back({name, incomparable(-1), 1, "extra: the reference does not have it"});
  }
  for (const auto& [name, pool] : pools) {
    const double floor = floors.of(static_cast<std::int64_t>(pool.b.size()));
    errors.push_back({name, tensor_error(pool.a, pool.b, floor, trim), pool.tensors, ""});
  }
  std::sort(errors.begin(), errors.end(), [](const NamedError& x, const NamedError& y) { return x.name < y.name; });
  return errors;
}

std::vector<NamedError> compare_series(std::span<const double> a, std::span<const double> b, double floor) {
  std::vector<NamedError> errors;
  for (std::size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    NamedError entry{fmt::format("step {}", i + 1), incomparable(-1), 1, ""};
    if (i >= a.size()) {
      entry.note = "missing: only the reference has it";
    } else if (i >= b.size()) {
      entry.note = "extra: the reference does not have it";
    } else {
      entry.error = tensor_error(a.subspan(i, 1), b.subspan(i, 1), floor);
    }
    errors.push_back(entry);
  }
  return errors;
}

NamedValues difference(const NamedValues& a, const NamedValues& b) {
  if (a.size() != b.size()) throw std::invalid_argument(fmt::format("difference of {} and {} tensors", a.size(), b.size()));
  NamedValues result;
  for (const auto& [name, x] : a) {
    const auto found = b.find(name);
    if (found == b.end()) throw std::invalid_argument("difference: only one side has " + name);
    const std::vector<double>& y = found->second;
    if (x.size() != y.size()) throw std::invalid_argument("difference: unequal sizes of " + name);
    std::vector<double>& d = result[name];
    d.resize(x.size());
    std::transform(x.begin(), x.end(), y.begin(), d.begin(), std::minus<>());
  }
  return result;
}

double least_tolerance(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFp64: return 1e-11;
    case Dtype::kFp32: return 1e-6;
    case Dtype::kBf16: return 4e-3;
    case Dtype::kInt32: break;
  }
  throw std::invalid_argument("integers are compared by equality and have no tolerance");
}

double yardstick_tolerance(Dtype dtype, double own_error) {
  const double least = least_tolerance(dtype);
  if (dtype == Dtype::kFp64 || !std::isfinite(own_error)) return least;
  return std::clamp(3 * own_error, least, kMostTolerance);
}

std::map<std::string, double> yardstick_tolerances(Dtype dtype, std::span<const NamedError> own) {
  std::map<std::string, double> tolerances;
  for (const NamedError& e : own) tolerances[e.name] = yardstick_tolerance(dtype, e.error.relative);
  return tolerances;
}

}  // namespace ref5d
