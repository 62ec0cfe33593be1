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
    : own_(own.gradients), truth_(truth.gradients), sound_(error_of_all(own_, truth_) <= kMostYardstickError) {
  for (const auto& [name, exact] : truth_) {
    const auto rounded = own_.find(name);
    if (rounded == own_.end() || rounded->second.size() != exact.size()) continue;
    std::vector<bool>& known = known_[name];
    known.resize(exact.size());
    for (std::size_t i = 0; i < exact.size(); ++i)
      known[i] = !sound_ || std::abs(rounded->second[i] - exact[i]) <= std::abs(exact[i]) / 3;
  }
}

KnownElements::KnownElements(const RunValues& truth) : own_(truth.gradients), truth_(truth.gradients), sound_(true) {
  const Floors floors(CompareKind::kGradient, truth_);
  for (const auto& [name, gradient] : truth_) {
    const std::vector<double>& exact = gradient;
    NormSum tensor;
    tensor.add(exact);
    const double allowed =
        least_tolerance(Dtype::kFp64) * std::max(tensor.norm(), floors.of(static_cast<std::int64_t>(exact.size())));
    const auto is_rounding = [&](std::size_t i) { return i < exact.size() && exact[i] != 0 && std::abs(exact[i]) <= allowed; };
    std::vector<bool>& known = known_[name];
    for (std::size_t i = 0; i < exact.size(); ++i) {
      const bool zero_by_chance = exact[i] == 0 && (is_rounding(i - 1) || is_rounding(i + 1));  // -1 wraps: beyond the end
      known.push_back(!is_rounding(i) && !zero_by_chance);
    }
  }
}

bool KnownElements::known(const std::string& name, std::size_t i) const {
  const auto found = known_.find(name);
  return found == known_.end() || i >= found->second.size() || found->second[i];
}

bool KnownElements::nonzero(const std::string& name, std::size_t i) const {
  if (!known(name, i)) return false;
  const auto found = known_.find(name);
  if (!sound_ || found == known_.end() || i >= found->second.size()) return true;
  const std::vector<double>& exact = truth_.at(name);
  return std::abs(exact[i]) > 8 * rounding_around(own_.at(name), exact, i);
}

std::int64_t KnownElements::count(const std::string& name, std::size_t size) const {
  std::int64_t n = 0;
  for (std::size_t i = 0; i < size; ++i) n += known(name, i) ? 1 : 0;
  return n;
}

std::pair<NamedValues, NamedValues> KnownElements::select(const NamedValues& a, const NamedValues& b) const {
  const auto known_of = [&](const NamedValues& values, const NamedValues& others) {
    NamedValues selected;
    for (const auto& [name, all] : values) {
      const auto other = others.find(name);
      const bool comparable = other != others.end() && other->second.size() == all.size();
      std::vector<double> kept;
      for (std::size_t i = 0; i < all.size(); ++i)
        if (!comparable || known(name, i)) kept.push_back(all[i]);
      if (!kept.empty() || all.empty()) selected[name] = std::move(kept);
    }
    return selected;
  };
  return {known_of(a, b), known_of(b, a)};
}

}  // namespace ref5d
