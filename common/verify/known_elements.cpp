#include "common/verify/known_elements.h"

#include <algorithm>
#include <cmath>

namespace ref5d {

double rounding_around(const std::vector<double>& rounded, const std::vector<double>& exact, std::size_t i) {
  const std::size_t begin = i / kAround * kAround, end = std::min(exact.size(), begin + kAround);
  double squares = 0;
  for (std::size_t j = begin; j < end; ++j) squares += (rounded[j] - exact[j]) * (rounded[j] - exact[j]);
  return std::sqrt(squares / static_cast<double>(end - begin));
}

double error_of_all(const NamedValues& a, const NamedValues& b) {
  NormSum off, all;
  for (const auto& [name, values] : difference(a, b)) off.add(values);
  for (const auto& [name, values] : b) all.add(values);
  return all.norm() > 0 ? off.norm() / all.norm() : 0;
}

KnownElements::KnownElements(const RunValues& own, const RunValues& truth)
    : own_(own.gradients), truth_(truth.gradients), sound_(error_of_all(own_, truth_) <= kMostYardstickError) {}

bool KnownElements::known(const std::string& name, std::size_t i) const {
  if (!sound_) return true;
  const auto exact = truth_.find(name), rounded = own_.find(name);
  if (exact == truth_.end() || rounded == own_.end() || i >= exact->second.size()) return true;
  return std::abs(rounded->second[i] - exact->second[i]) <= std::abs(exact->second[i]) / 3;
}

bool KnownElements::nonzero(const std::string& name, std::size_t i) const {
  if (!known(name, i)) return false;
  const auto exact = truth_.find(name), rounded = own_.find(name);
  if (!sound_ || exact == truth_.end() || rounded == own_.end() || i >= exact->second.size()) return true;
  return std::abs(exact->second[i]) > 8 * rounding_around(rounded->second, exact->second, i);
}

std::int64_t KnownElements::count(const std::string& name, std::size_t size) const {
  std::int64_t n = 0;
  for (std::size_t i = 0; i < size; ++i) n += known(name, i) ? 1 : 0;
  return n;
}

NamedValues KnownElements::only_known(NamedValues u, const NamedValues& truth_update) const {
  for (auto& [name, values] : u) {
    const auto exact = truth_update.find(name);
    if (exact == truth_update.end() || exact->second.size() != values.size()) continue;
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (std::isfinite(values[i]) && !known(name, i)) values[i] = exact->second[i];
    }
  }
  return u;
}

}  // namespace ref5d
