#include "common/verify/run_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

namespace ref5d {

namespace {

struct Comparison {
  const char* group;
  std::vector<NamedError> candidate, own;  // own is empty in fp64
};

// ||a - b|| / ||b|| over all tensors.
double error_of_all(const NamedValues& a, const NamedValues& b) {
  NormSum off, all;
  for (const auto& [name, values] : difference(a, b)) off.add(values);
  for (const auto& [name, values] : b) all.add(values);
  return all.norm() > 0 ? off.norm() / all.norm() : 0;
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

void add(Verdict& verdict, Dtype dtype, const Comparison& c) {
  if (dtype == Dtype::kFp64) {
    verdict.add_set(c.group, c.candidate, least_tolerance(dtype));
  } else {
    verdict.add_set(c.group, c.candidate, yardstick_tolerances(dtype, c.own));
  }
}

NamedValues update(const RunValues& r) { return difference(r.final_weights, r.initial); }

// The root mean square of the rounding errors in the run of kAround gradients that holds element i.
constexpr std::size_t kAround = 64;
double rounding_around(const std::vector<double>& rounded, const std::vector<double>& exact, std::size_t i) {
  const std::size_t begin = i / kAround * kAround, end = std::min(exact.size(), begin + kAround);
  double squares = 0;
  for (std::size_t j = begin; j < end; ++j) squares += (rounded[j] - exact[j]) * (rounded[j] - exact[j]);
  return std::sqrt(squares / static_cast<double>(end - begin));
}

// Which elements of a tensor can be compared after training: those whose first gradient `own` has right to a third. The others'
// gradient is rounding and nothing else (a key's bias, whose gradient is zero in exact arithmetic), and so is which way Adam
// moves them. All of them if own's gradients are wrong altogether: such a run excuses nothing.
class Known {
 public:
  Known(const RunValues& own, const RunValues& truth)
      : own_(own.gradients), truth_(truth.gradients), sound_(error_of_all(own_, truth_) <= kMostYardstickError) {}
  [[nodiscard]] bool operator()(const std::string& name, std::size_t i) const {
    if (!sound_) return true;
    const auto exact = truth_.find(name), rounded = own_.find(name);
    if (exact == truth_.end() || rounded == own_.end() || i >= exact->second.size()) return true;
    return std::abs(rounded->second[i] - exact->second[i]) <= std::abs(exact->second[i]) / 3;
  }
  // Known, and so much larger than the rounding errors around it that no right run can have it as zero.
  [[nodiscard]] bool nonzero(const std::string& name, std::size_t i) const {
    const auto exact = truth_.find(name), rounded = own_.find(name);
    if (!(*this)(name, i)) return false;
    if (!sound_ || exact == truth_.end() || rounded == own_.end() || i >= exact->second.size()) return true;
    return std::abs(exact->second[i]) > 8 * rounding_around(rounded->second, exact->second, i);
  }
  [[nodiscard]] std::int64_t count(const std::string& name, std::size_t size) const {
    std::int64_t n = 0;
    for (std::size_t i = 0; i < size; ++i) n += (*this)(name, i) ? 1 : 0;
    return n;
  }

 private:
  const NamedValues &own_, &truth_;
  bool sound_;
};

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

// `u`, but the truth's where nothing is known. What does not fit the truth is left as it is, for compare_sets to say.
NamedValues known_update(NamedValues u, const NamedValues& truth_update, const Known& known) {
  for (auto& [name, values] : u) {
    const auto exact = truth_update.find(name);
    if (exact == truth_update.end() || exact->second.size() != values.size()) continue;
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (std::isfinite(values[i]) && !known(name, i)) values[i] = exact->second[i];
    }
  }
  return u;
}

// What the elements that known_update and kUpdateTrim leave out are held to. AdamW bounds a step, so none may be further off
// than a few of the largest updates; and none may stay exactly where it was if it moves in the two other runs, by more than
// rounding, and its gradient cannot have been rounded to zero.
void check_left_out(Verdict& verdict, const RunValues& candidate, const NamedValues& candidate_update, const NamedValues& truth,
                    const NamedValues& own, const Known& known) {
  double largest = 0, furthest = 0;
  for (const auto& [name, values] : own) {  // not the truth's, or a single wrong value in it would excuse itself
    for (double x : values) largest = std::max(largest, std::abs(x));
  }
  std::int64_t unmoved = 0;
  std::string where_far = "no tensor", where_unmoved = "no tensor";
  for (const auto& [name, u] : candidate_update) {
    const auto exact = truth.find(name), same = own.find(name);
    if (exact == truth.end() || same == own.end() || exact->second.size() != u.size() || same->second.size() != u.size())
      continue;
    const std::vector<double>& start = candidate.initial.at(name);
    for (std::size_t i = 0; i < u.size(); ++i) {
      const double t = exact->second[i];
      const double off = std::isfinite(u[i]) ? std::abs(u[i] - t) : std::numeric_limits<double>::infinity();
      if (off > furthest) furthest = off, where_far = name;
      if (u[i] != 0 || same->second[i] == 0 || std::abs(t) <= 1e-5 * std::abs(start[i]) || !known.nonzero(name, i)) continue;
      ++unmoved;
      where_unmoved = name;
    }
  }
  verdict.add("updates/furthest off", "largest updates, in " + where_far, furthest == 0 ? 0 : furthest / largest, 3);
  verdict.add("updates/unmoved elements", "number, in " + where_unmoved, static_cast<double>(unmoved), 0);
}

double worst_of(const std::vector<NamedError>& errors) {
  double worst = 0;
  for (const NamedError& e : errors) worst = std::max(worst, e.error.relative);
  return worst;
}

// What own's errors stand for, where more than the first step's gradients is compared.
struct Yardstick {
  std::vector<NamedError> losses, grad_norms;
  double update;
};
Yardstick yardstick_of(const RunValues& own, const RunValues& truth) {
  const double luck = bad_luck(own, truth);
  const NamedValues exact = update(truth);
  const double update_error = error_of_all(known_update(update(own), exact, Known(own, truth)), exact);
  // | ||a|| - ||b|| | <= ||a - b||: a norm's error is smaller than its vector's by luck alone.
  const double gradient_error = error_of_all(own.gradients, truth.gradients);
  const auto series = [&](std::vector<double> RunValues::*values, double first) {
    return series_yardstick(compare_series(own.*values, truth.*values), truth.*values, first, update_error, luck);
  };
  return {series(&RunValues::losses, 0), series(&RunValues::grad_norms, gradient_error),
          luck * worst_of(update_errors(own, truth, own))};
}

void check_updates(Verdict& verdict, Dtype dtype, const RunValues& candidate, const RunValues& truth, const RunValues& own,
                   double yardstick) {
  const NamedValues exact = update(truth);
  const Known known(own, truth);
  for (const NamedError& e : update_errors(candidate, truth, own)) {
    std::string measure = "relative error of 99%";
    if (const auto at = exact.find(e.name); at != exact.end()) {  // not a pool
      const std::int64_t n = known.count(e.name, at->second.size());
      if (n < static_cast<std::int64_t>(at->second.size())) measure += fmt::format(" of the {} known elements", n);
    }
    verdict.add_set("updates", {&e, 1}, yardstick_tolerance(dtype, yardstick), measure);
  }
  check_left_out(verdict, candidate, update(candidate), exact, update(own), known);
}

}  // namespace

std::vector<NamedError> update_errors(const RunValues& run, const RunValues& truth, const RunValues& own) {
  const NamedValues exact = update(truth);
  return compare_sets(known_update(update(run), exact, Known(own, truth)), exact, CompareKind::kUpdate);
}

double yardstick_error(const RunValues& own, const RunValues& truth) {
  const Yardstick yardstick = yardstick_of(own, truth);
  double worst = yardstick.update;
  for (const auto* series : {&yardstick.losses, &yardstick.grad_norms}) {
    for (std::size_t s = 1; s < series->size(); ++s) worst = std::max(worst, (*series)[s].error.relative);
  }
  return worst;
}

void check_run(Verdict& verdict, Dtype dtype, const RunValues& candidate, const RunValues& truth, const RunValues* own) {
  const bool fp64 = dtype == Dtype::kFp64;
  if (!fp64 && own == nullptr) throw std::logic_error("fp32 and bf16 need a single-device run of their own dtype as yardstick");

  const Yardstick yardstick = fp64 ? Yardstick{} : yardstick_of(*own, truth);
  add(verdict, dtype, {"loss", compare_series(candidate.losses, truth.losses), yardstick.losses});
  add(verdict, dtype, {"grad norm", compare_series(candidate.grad_norms, truth.grad_norms), yardstick.grad_norms});
  add(verdict, dtype,
      {"gradients", compare_sets(candidate.gradients, truth.gradients, CompareKind::kGradient),
       fp64 ? std::vector<NamedError>{} : compare_sets(own->gradients, truth.gradients, CompareKind::kGradient)});
  if (fp64) {
    add(verdict, dtype,
        {"parameters", compare_sets(candidate.final_weights, truth.final_weights, CompareKind::kParameter), {}});
  } else {
    check_updates(verdict, dtype, candidate, truth, *own, yardstick.update);
  }
}

}  // namespace ref5d
