#include "common/verify/run_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "common/verify/known_elements.h"
#include "common/verify/yardstick.h"

namespace ref5d {

namespace {

struct Comparison {
  const char* group;
  std::vector<NamedError> candidate, own;  // own is empty in fp64
};

void add(Verdict& verdict, Dtype dtype, const Comparison& c) {
  if (dtype == Dtype::kFp64) {
    verdict.add_set(c.group, c.candidate, least_tolerance(dtype));
  } else {
    verdict.add_set(c.group, c.candidate, yardstick_tolerances(dtype, c.own));
  }
}

// What the elements that KnownElements and kUpdateTrim leave out are held to. AdamW bounds a step, so none may be further off
// than a few of the largest updates; and none may stay exactly where it was if it moves in the two other runs, its gradient
// cannot have been rounded to zero, and the truth moves it by more than rounding and by a tenth of the largest update at least:
// what is smaller is the difference of steps that nearly cancel, and can come out as exactly nothing.
void check_left_out(Verdict& verdict, const RunValues& candidate, const NamedValues& candidate_update, const NamedValues& truth,
                    const NamedValues& own, const KnownElements& elements) {
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
    double furthest_here = 0;
    for (std::size_t i = 0; i < u.size(); ++i) {
      const double t = exact->second[i];
      const double off = std::isfinite(u[i]) ? std::abs(u[i] - t) : std::numeric_limits<double>::infinity();
      furthest_here = std::max(furthest_here, off);
      const bool moves = same->second[i] != 0 && std::abs(t) > std::max(largest / 10, 1e-5 * std::abs(start[i]));
      if (u[i] != 0 || !moves || !elements.nonzero(name, i)) continue;
      ++unmoved;
      where_unmoved = name;
    }
    if (furthest_here > furthest) furthest = furthest_here, where_far = name;
    if (!u.empty() && elements.count(name, u.size()) == 0) {
      verdict.add("updates/" + name, fmt::format("largest updates, since none of its {} elements is known", u.size()),
                  furthest_here == 0 ? 0 : furthest_here / largest, 3);
    }
  }
  verdict.add("updates/furthest off", "largest updates, in " + where_far, furthest == 0 ? 0 : furthest / largest, 3);
  verdict.add("updates/unmoved elements", "number, in " + where_unmoved, static_cast<double>(unmoved), 0);
}

// `measure`, and on which elements. (A pool's entry has the name of a kind, not of a tensor.)
std::string measured_on(std::string measure, const std::string& entry, const NamedValues& exact,
                        const KnownElements& elements) {
  const auto is_whole = [&](const std::string& name, std::size_t size) {
    return elements.count(name, size) == static_cast<std::int64_t>(size);
  };
  if (const auto at = exact.find(entry); at != exact.end()) {
    if (!is_whole(entry, at->second.size()))
      measure += fmt::format(" of the {} known elements", elements.count(entry, at->second.size()));
  } else if (std::any_of(exact.begin(), exact.end(), [&](const auto& tensor) {
               return kind_of(tensor.first) == entry && !is_whole(tensor.first, tensor.second.size());
             })) {
    measure += " of the known elements";
  }
  return measure;
}

void check_updates(Verdict& verdict, Dtype dtype, const RunValues& candidate, const RunValues& truth, const RunValues& own,
                   double yardstick) {
  const NamedValues exact = update(truth);
  const KnownElements elements(own, truth);
  for (const NamedError& e : update_errors(candidate, truth, elements))
    verdict.add_set("updates", {&e, 1}, yardstick_tolerance(dtype, yardstick),
                    measured_on("relative error of 99%", e.name, exact, elements));
  check_left_out(verdict, candidate, update(candidate), exact, update(own), elements);
}

// In fp64: the weights themselves. Of the elements whose gradient is rounding alone none may be further off than AdamW can take
// it.
void check_parameters(Verdict& verdict, const RunValues& candidate, const RunValues& truth) {
  const NamedValues &exact = truth.final_weights, exact_update = update(truth);
  const KnownElements elements(truth);
  const auto [known, known_exact] = elements.select(candidate.final_weights, exact);
  for (const NamedError& e : compare_sets(known, known_exact, CompareKind::kParameter))
    verdict.add_set("parameters", {&e, 1}, least_tolerance(Dtype::kFp64),
                    measured_on(std::string(kRelativeError), e.name, exact, elements));
  double largest = 0, furthest = 0;
  std::int64_t left_out = 0;
  for (const auto& [name, values] : exact) {
    const auto found = candidate.final_weights.find(name);
    for (std::size_t i = 0; i < values.size(); ++i) {
      largest = std::max(largest, std::abs(exact_update.at(name)[i]));
      if (elements.known(name, i)) continue;
      ++left_out;
      if (found == candidate.final_weights.end() || i >= found->second.size()) continue;  // compare_sets says so
      const double off = std::abs(found->second[i] - values[i]);
      furthest = std::isfinite(off) ? std::max(furthest, off) : std::numeric_limits<double>::infinity();
    }
  }
  if (left_out > 0) {
    verdict.add("parameters/unknown elements", fmt::format("largest updates, the furthest off of {} elements", left_out),
                furthest == 0 ? 0 : furthest / largest, 3);
  }
}

}  // namespace

void check_run(Verdict& verdict, Dtype dtype, const RunValues& candidate, const RunValues& truth, const RunValues* own) {
  const bool fp64 = dtype == Dtype::kFp64;
  if (!fp64 && own == nullptr) throw std::logic_error("fp32 and bf16 need a single-device run of their own dtype as yardstick");

  const Yardstick yardstick = fp64 ? Yardstick{} : yardstick_of(*own, truth);
  add(verdict, dtype, {"loss", compare_series(candidate.losses, truth.losses), yardstick.losses});
  add(verdict, dtype, {"grad norm", compare_series(candidate.grad_norms, truth.grad_norms), yardstick.grad_norms});
  if (!truth.aux_losses.empty() || !candidate.aux_losses.empty())
    add(verdict, dtype,
        {"aux loss", compare_series(candidate.aux_losses, truth.aux_losses),
         fp64 ? std::vector<NamedError>{} : compare_series(own->aux_losses, truth.aux_losses)});
  if (!truth.buffers.empty() || !candidate.buffers.empty())  // moved by counts, which all precisions agree on
    verdict.add_set("buffers", compare_sets(candidate.buffers, truth.buffers, CompareKind::kActivation),
                    least_tolerance(dtype));
  add(verdict, dtype,
      {"gradients", compare_sets(candidate.gradients, truth.gradients, CompareKind::kGradient),
       fp64 ? std::vector<NamedError>{} : compare_sets(own->gradients, truth.gradients, CompareKind::kGradient)});
  if (fp64) {
    check_parameters(verdict, candidate, truth);
  } else {
    check_updates(verdict, dtype, candidate, truth, *own, yardstick.update);
  }
}

}  // namespace ref5d
