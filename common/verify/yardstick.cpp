#include "common/verify/yardstick.h"

#include <algorithm>
#include <cmath>
#include <span>

namespace ref5d {

namespace {

// How much larger than own's the error of the first update is to be expected, at least 1. Adam moves an element by g / (|g| +
// eps), so almost all of the error is made by the few elements whose g is as small as eps, where a rounding error d of the
// gradient makes d / eps of it: own's error is a draw from a wide distribution, and all later errors grow from it. What to
// expect follows from the rounding errors around each element: d is normal, with their root mean square. (8 quantiles of the
// normal distribution stand for it. A gradient that is exactly 0, or 0 but for rounding, has no part in it.) At most
// kMostLuck: where neighbours' rounding errors differ widely their mean says little, and it must not excuse everything.
constexpr double kMostLuck = 5;
double bad_luck(const RunValues& own, const RunValues& truth) {
  if (truth.epsilon == 0) return 1;
  constexpr double kQuantiles[] = {0.157, 0.489, 0.887, 1.534};
  double expected = 0, drawn = 0;
  for (const auto& [name, exact] : truth.gradients) {
    const auto found = own.gradients.find(name);
    if (found == own.gradients.end() || found->second.size() != exact.size()) continue;
    const std::vector<double>& rounded = found->second;
    for (std::size_t begin = 0; begin < exact.size(); begin += kAround) {
      const std::size_t end = std::min(exact.size(), begin + kAround);
      const double rms = rounding_around(rounded, exact, begin);
      for (std::size_t i = begin; i < end; ++i) {
        const double g = exact[i];
        if (std::abs(g) <= 1e-6 * rms) continue;
        const auto off = [&](double d) {
          const double x = (g + d) / (std::abs(g + d) + truth.epsilon) - g / (std::abs(g) + truth.epsilon);
          return x * x;
        };
        drawn += off(rounded[i] - g);
        for (double q : kQuantiles) expected += (off(q * rms) + off(-q * rms)) / 8;
      }
    }
  }
  if (drawn == 0 || !std::isfinite(expected)) return 1;
  return std::clamp(std::sqrt(expected / drawn), 1.0, kMostLuck);
}

// The yardstick of a loss or a gradient norm. The own run's error of a single number can be small by luck: of two errors drawn
// from one normal distribution, one exceeds three times the other in a fifth of all cases. So three things count:
//   the worst own error so far, since what a dtype does to a training run only grows with its steps;
//   `first`, an error that the number cannot escape at the first step;
//   what the weights' error makes of it later. Training changed the weights by the update, and thereby the number, from the
//   first step's. Of that update the own run has the share `update_error` wrong, which changes the number by that share of the
//   change. (The change over all steps: most of the error is made by the first update, where gradients are lost in rounding.)
// After the first step both own errors count `luck` times (bad_luck).
std::vector<NamedError> series_yardstick(std::vector<NamedError> own, std::span<const double> truth, double first,
                                         double update_error, double luck) {
  double worst = first, change = 0;
  for (double x : truth) change = std::max(change, std::abs(x - truth[0]));
  for (std::size_t s = 0; s < std::min(own.size(), truth.size()); ++s) {
    worst = std::max(worst, own[s].error.relative * (s == 0 ? 1 : luck));
    const double of_weights = s == 0 || truth[s] == 0 ? 0 : luck * update_error * change / std::abs(truth[s]);
    own[s].error.relative = std::max(worst, of_weights);
  }
  return own;
}

double worst_of(const std::vector<NamedError>& errors) {
  double worst = 0;
  for (const NamedError& e : errors) worst = std::max(worst, e.error.relative);
  return worst;
}

}  // namespace

Yardstick yardstick_of(const RunValues& own, const RunValues& truth) {
  const double luck = bad_luck(own, truth);
  const KnownElements elements(own, truth);
  const auto [known_own, known_truth] = elements.select(update(own), update(truth));
  const double update_error = error_of_all(known_own, known_truth);
  // | ||a|| - ||b|| | <= ||a - b||: a norm's error is smaller than its vector's by luck alone.
  const double gradient_error = error_of_all(own.gradients, truth.gradients);
  const auto series = [&](std::vector<double> RunValues::*values, double first) {
    return series_yardstick(compare_series(own.*values, truth.*values), truth.*values, first, update_error, luck);
  };
  return {series(&RunValues::losses, 0), series(&RunValues::grad_norms, gradient_error),
          luck * worst_of(update_errors(own, truth, elements))};
}

double yardstick_error(const RunValues& own, const RunValues& truth) {
  const Yardstick yardstick = yardstick_of(own, truth);
  double worst = yardstick.update;
  for (const auto* series : {&yardstick.losses, &yardstick.grad_norms}) {
    for (std::size_t s = 1; s < series->size(); ++s) worst = std::max(worst, (*series)[s].error.relative);
  }
  return worst;
}

std::vector<NamedError> update_errors(const RunValues& run, const RunValues& truth, const KnownElements& elements) {
  const auto [known_run, known_truth] = elements.select(update(run), update(truth));
  return compare_sets(known_run, known_truth, CompareKind::kUpdate);
}

}  // namespace ref5d
