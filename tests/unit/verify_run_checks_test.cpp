// How a run is judged: what a right run may differ by, and what no yardstick excuses.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "common/train/baselines.h"
#include "common/verify/run_checks.h"
#include "common/verify/yardstick.h"

namespace ref5d {
namespace {

// Two parameters, three steps; `noise` is the relative error of everything, drawn from `seed`.
RunValues values(double noise, unsigned seed) {
  std::mt19937 truth(7), rounding(seed);
  std::normal_distribution<double> normal(0, 1), normal_noise(0, 1);
  const auto near = [&](double x) { return x * (1 + noise * normal_noise(rounding)); };
  RunValues r;
  for (double loss : {5.0, 4.0, 3.5}) r.losses.push_back(loss + (near(loss) - loss) / 100);  // the mean of many tokens
  for (double norm : {1.0, 2.0, 1.5}) r.grad_norms.push_back(near(norm));
  for (const char* name : {"a", "b"}) {
    for (int i = 0; i < 400; ++i) {
      const double w = normal(truth), g = normal(truth), u = 0.01 * normal(truth);
      r.initial[name].push_back(w);
      r.gradients[name].push_back(g + noise * normal_noise(rounding));
      r.final_weights[name].push_back(w + near(u));
    }
  }
  return r;
}

std::vector<std::string> failures(Dtype dtype, const RunValues& candidate, const RunValues& truth, const RunValues* own) {
  Verdict verdict;
  check_run(verdict, dtype, candidate, truth, own);
  std::vector<std::string> names;
  for (const Check& c : verdict.checks()) {
    if (!c.pass) names.push_back(c.name);
  }
  return names;
}

using Names = std::vector<std::string>;

TEST(RunChecks, ARunAsGoodAsTheSingleDeviceRunPasses) {
  const RunValues truth = values(0, 0);
  for (unsigned seed = 1; seed <= 50; ++seed) {
    const RunValues own = values(1e-5, seed);
    EXPECT_EQ(failures(Dtype::kFp32, values(1e-5, 1000 + seed), truth, &own), Names{}) << seed;
  }
}

TEST(RunChecks, ATenthOfThePrecisionFails) {
  const RunValues truth = values(0, 0), own = values(1e-5, 1);
  const Names names = failures(Dtype::kFp32, values(1e-4, 2), truth, &own);
  for (const char* name : {"gradients/a", "gradients/b", "updates/a", "updates/b"})
    EXPECT_NE(std::find(names.begin(), names.end(), name), names.end()) << name;
}

TEST(RunChecks, Fp64HasNoYardstick) {
  const RunValues truth = values(0, 0);
  EXPECT_EQ(failures(Dtype::kFp64, values(1e-13, 1), truth, nullptr), Names{});
  EXPECT_EQ(failures(Dtype::kFp64, values(1e-7, 1), truth, nullptr).size(), 3u + 3u + 2u + 2u);
  EXPECT_THROW((void)failures(Dtype::kFp32, truth, truth, nullptr), std::logic_error);
}

// The own run's loss and norm are exact at every step, by luck; its weights and gradients are not.
TEST(RunChecks, LuckOfASingleNumberIsNoYardstick) {
  const RunValues truth = values(0, 0);
  RunValues own = values(1e-4, 1), candidate = values(1e-4, 2);
  own.losses = candidate.losses = truth.losses;
  own.grad_norms = candidate.grad_norms = truth.grad_norms;
  candidate.losses[2] *= 1 + 5e-5;      // training moved it by 1.5 of 3.5
  candidate.grad_norms[0] *= 1 + 1e-4;  // its vector is as far off
  candidate.grad_norms[1] *= 1 + 1e-4;
  EXPECT_EQ(failures(Dtype::kFp32, candidate, truth, &own), Names{});
  candidate.losses[0] *= 1 + 3e-6;  // before any update there is nothing that could excuse it
  candidate.losses[2] *= 1 + 5e-4;
  candidate.grad_norms[0] *= 1 + 1e-3;
  EXPECT_EQ(failures(Dtype::kFp32, candidate, truth, &own), (Names{"loss/step 1", "loss/step 3", "grad norm/step 1"}));
}

// Elements whose gradient is all rounding move either way; a part of a tensor that did not move is a fault.
TEST(RunChecks, AFewStrayUpdatesPassAndAPartThatDidNotMoveFails) {
  const RunValues truth = values(0, 0), own = values(1e-5, 1);
  RunValues candidate = values(1e-5, 2);
  for (int i : {3, 200, 399}) candidate.final_weights["a"][static_cast<std::size_t>(i)] = truth.initial.at("a")[i] - 0.01;
  EXPECT_EQ(failures(Dtype::kFp32, candidate, truth, &own), Names{});
  for (std::size_t i = 0; i < 8; ++i) candidate.final_weights["b"][i] = truth.initial.at("b")[i];  // 2% of it
  EXPECT_EQ(failures(Dtype::kFp32, candidate, truth, &own), (Names{"updates/b", "updates/unmoved elements"}));
}

// What the 1% leaves out must have moved, and not far.
TEST(RunChecks, NoElementMayStayOrGoFar) {
  const RunValues truth = values(0, 0), own = values(1e-5, 1);
  for (const bool far : {false, true}) {
    RunValues candidate = values(1e-5, 2);
    for (std::size_t i = 396; i < 400; ++i) candidate.final_weights["b"][i] = far ? 1e6 : truth.initial.at("b")[i];
    EXPECT_EQ(failures(Dtype::kFp32, candidate, truth, &own), Names{far ? "updates/furthest off" : "updates/unmoved elements"});
  }
}

TEST(RunChecks, ASetOfAnotherShapeFailsByName) {
  const RunValues truth = values(0, 0), own = values(1e-5, 1);
  RunValues candidate = values(1e-5, 2);
  candidate.initial["c"] = candidate.final_weights["c"] = {1, 2};
  for (NamedValues* set : {&candidate.initial, &candidate.final_weights, &candidate.gradients}) (*set)["b"].resize(900, 1.0);
  EXPECT_EQ(failures(Dtype::kFp32, candidate, truth, &own), (Names{"gradients/b", "updates/b", "updates/c"}));
}

// A key's bias: no gradient but rounding, and an update that is chance. What is known beside it is compared.
TEST(RunChecks, UpdatesThatAreAllRoundingAreLeftOutByName) {
  RunValues truth = values(0, 0), own = values(1e-5, 1), candidate = values(1e-5, 2);
  for (std::size_t i = 100; i < 200; ++i) {
    truth.gradients["a"][i] = 1e-19;
    own.gradients["a"][i] = 3e-10;
    candidate.gradients["a"][i] = -2e-10;
    own.final_weights["a"][i] += 0.001;
    candidate.final_weights["a"][i] -= 0.001;
  }
  Verdict verdict;
  check_run(verdict, Dtype::kFp32, candidate, truth, &own);
  EXPECT_TRUE(verdict.pass()) << checks_table(verdict.checks());
  EXPECT_TRUE(std::any_of(verdict.checks().begin(), verdict.checks().end(), [](const Check& c) {
    return c.name == "updates/a" && c.measure == "relative error of 99% of the 300 known elements";
  }));
  for (std::size_t i = 200; i < 220; ++i) candidate.final_weights["a"][i] += 0.001;
  EXPECT_EQ(failures(Dtype::kFp32, candidate, truth, &own), Names{"updates/a"});
}

// In fp64 rounding alone moves a weight whose gradient is zero in exact arithmetic, by lr * rounding / eps.
TEST(RunChecks, Fp64LeavesOutWhatIsRoundingAlone) {
  RunValues truth = values(0, 0), candidate = values(1e-14, 1);
  for (std::size_t i = 0; i < 100; ++i) {
    truth.gradients["a"][i] = 3e-17;
    candidate.gradients["a"][i] = -2e-17;
    candidate.final_weights["a"][i] += 1e-9;
  }
  Verdict verdict;
  check_run(verdict, Dtype::kFp64, candidate, truth, nullptr);
  EXPECT_TRUE(verdict.pass()) << checks_table(verdict.checks());
  EXPECT_TRUE(std::any_of(verdict.checks().begin(), verdict.checks().end(), [](const Check& c) {
    return c.name == "parameters/a" && c.measure == "relative error of the 300 known elements";
  }));
  RunValues far = candidate, wrong = candidate, missing = candidate;
  far.final_weights["a"][7] += 1;
  EXPECT_EQ(failures(Dtype::kFp64, far, truth, nullptr), Names{"parameters/unknown elements"});
  wrong.final_weights["a"][100] += 1e-9;
  EXPECT_EQ(failures(Dtype::kFp64, wrong, truth, nullptr), Names{"parameters/a"});
  wrong = candidate;
  wrong.gradients["a"][7] = 1e-9;  // not rounding, and the check of gradients says so
  EXPECT_EQ(failures(Dtype::kFp64, wrong, truth, nullptr), Names{"gradients/a"});
  missing.final_weights.erase("a");
  missing.initial.erase("a");
  EXPECT_EQ(failures(Dtype::kFp64, missing, truth, nullptr), Names{"parameters/a"});
  truth.gradients["a"][7] = 0;  // by chance
  EXPECT_EQ(failures(Dtype::kFp64, candidate, truth, nullptr), Names{});
  // A gradient of exactly zero is no rounding: what never occurred must not have moved.
  truth.gradients["b"][3] = candidate.gradients["b"][3] = 0;
  candidate.final_weights["b"][3] += 1e-6;
  EXPECT_EQ(failures(Dtype::kFp64, candidate, truth, nullptr), Names{"parameters/b"});
}

// The hundredth that is left out is one of the known elements, however few they are.
TEST(RunChecks, AFewKnownElementsAreComparedAll) {
  RunValues truth = values(0, 0), own = values(1e-5, 1), candidate = values(1e-5, 2);
  for (std::size_t i = 0; i < 400; ++i) {
    if (i % 10 == 0) continue;  // 40 are known
    truth.gradients["b"][i] = 1e-19;
    own.gradients["b"][i] = 3e-10;
    candidate.gradients["b"][i] = -2e-10;
  }
  EXPECT_EQ(failures(Dtype::kFp32, candidate, truth, &own), Names{});
  for (std::size_t i = 0; i < 400; i += 10)
    candidate.final_weights["b"][i] = truth.initial["b"][i] - (truth.final_weights["b"][i] - truth.initial["b"][i]);
  EXPECT_EQ(failures(Dtype::kFp32, candidate, truth, &own), Names{"updates/b"}) << "every known element moved the wrong way";
}

// A tensor whose gradient is rounding and nothing else (a key's bias): bounded and named, and not excused from being there.
TEST(RunChecks, ATensorOfWhichNothingIsKnown) {
  for (const Dtype dtype : {Dtype::kFp64, Dtype::kFp32}) {
    const bool fp64 = dtype == Dtype::kFp64;
    RunValues truth = values(0, 0), own = values(1e-5, 1), candidate = values(fp64 ? 1e-14 : 1e-5, 2);
    for (std::size_t i = 0; i < 400; ++i) {
      truth.gradients["b"][i] = 1e-19;
      own.gradients["b"][i] = 3e-10;
      candidate.gradients["b"][i] = fp64 ? -2e-19 : -2e-10;
      candidate.final_weights["b"][i] += fp64 ? 1e-9 : 0.001;
    }
    const RunValues* yardstick = fp64 ? nullptr : &own;
    const std::string group = fp64 ? "parameters" : "updates";
    EXPECT_EQ(failures(dtype, candidate, truth, yardstick), Names{});
    Verdict verdict;
    check_run(verdict, dtype, candidate, truth, yardstick);
    EXPECT_TRUE(std::any_of(verdict.checks().begin(), verdict.checks().end(), [&](const Check& c) {
      return fp64 ? c.measure == "largest updates, the furthest off of 400 elements"
                  : c.name == "updates/b" && c.measure == "largest updates, since none of its 400 elements is known";
    }));
    RunValues missing = candidate, shorter = candidate, far = candidate;
    missing.initial.erase("b");
    missing.final_weights.erase("b");
    EXPECT_EQ(failures(dtype, missing, truth, yardstick), Names{group + "/b"});
    shorter.initial["b"].resize(10);
    shorter.final_weights["b"].resize(10);
    EXPECT_EQ(failures(dtype, shorter, truth, yardstick), Names{group + "/b"});
    far.final_weights["b"][5] = -1e3;
    EXPECT_NE(failures(dtype, far, truth, yardstick), Names{});
  }
}

// One element's gradient is as small as Adam's epsilon, and the own run happened to round it right.
TEST(RunChecks, ALuckyFirstUpdateIsNoYardstick) {
  RunValues truth = values(0, 0), own = values(1e-5, 1), candidate = values(5e-5, 2);
  candidate.losses = own.losses = truth.losses;
  candidate.grad_norms = own.grad_norms = truth.grad_norms;
  candidate.gradients = own.gradients;
  EXPECT_NE(failures(Dtype::kFp32, candidate, truth, &own), Names{}) << "five times own's error is too much";
  for (RunValues* r : {&truth, &own, &candidate}) r->epsilon = 1e-3;
  for (RunValues* r : {&truth, &own, &candidate}) r->gradients["a"][7] = 1e-4;
  own.gradients["a"][7] += 1e-8;
  EXPECT_EQ(failures(Dtype::kFp32, candidate, truth, &own), Names{});
  EXPECT_NE(failures(Dtype::kFp32, values(5e-4, 2), truth, &own), Names{}) << "luck has its limit";
  own.gradients["a"][7] += 3e-5;  // now it was as unlucky as can be expected
  EXPECT_NE(failures(Dtype::kFp32, candidate, truth, &own), Names{});
}

TEST(RunChecks, NoYardstickExcusesATensorThatNeverMoved) {
  const RunValues truth = values(0, 0), own = values(3.0, 1);
  RunValues candidate = truth;
  candidate.final_weights["a"] = truth.initial.at("a");
  candidate.gradients["b"].assign(400, 0.0);
  candidate.losses = {5.0, 5.0, 5.0 * 3};
  EXPECT_EQ(failures(Dtype::kBf16, candidate, truth, &own),
            (Names{"loss/step 3", "gradients/b", "updates/a", "updates/unmoved elements"}));
}

TEST(RunChecks, ABrokenRunFailsEverywhere) {
  const RunValues truth = values(0, 0), own = values(1e-5, 1);
  RunValues candidate = values(1e-5, 2);
  for (double& x : candidate.gradients["a"]) x = std::nan("");
  for (double& x : candidate.losses) x = std::nan("");
  candidate.gradients.erase("b");
  const Names names = failures(Dtype::kFp32, candidate, truth, &own);
  EXPECT_EQ(names, (Names{"loss/step 1", "loss/step 2", "loss/step 3", "gradients/a", "gradients/b"}));
}

// The candidate's gradient came out as zero. That is chance only where the gradient is as small as the rounding around it.
TEST(RunChecks, AnUnmovedElementIsChanceOnlyWhereItsGradientIsRounding) {
  RunValues truth = values(0, 0), own = values(1e-5, 1), candidate = values(1e-5, 2);
  candidate.final_weights["a"][7] = candidate.initial["a"][7];
  for (double& x : own.gradients["a"]) x += 1e-4;  // rounding, except of element 7, by luck
  truth.gradients["a"][7] = own.gradients["a"][7] = 7e-4;
  candidate.gradients["a"] = own.gradients["a"];
  EXPECT_EQ(failures(Dtype::kBf16, candidate, truth, &own), Names{});
  truth.gradients["a"][7] = own.gradients["a"][7] = candidate.gradients["a"][7] = 9e-4;
  EXPECT_EQ(failures(Dtype::kBf16, candidate, truth, &own), Names{"updates/unmoved elements"});
}

TEST(RunChecks, AWeightThatIsNoNumberIsFurthestOff) {
  const RunValues truth = values(0, 0), own = values(1e-5, 1);
  RunValues candidate = values(1e-5, 2);
  candidate.final_weights["a"][7] = std::nan("");
  EXPECT_EQ(failures(Dtype::kFp32, candidate, truth, &own), (Names{"updates/a", "updates/furthest off"}));
}

// A run whose error doubles with each step.
RunRecord record(Dtype dtype, std::int64_t steps) {
  RunRecord r;
  r.values = values(0, 0);
  if (dtype == Dtype::kFp64) return r;
  const double error = 0.02 * std::pow(2.0, static_cast<double>(steps));
  for (auto& [name, w] : r.values.final_weights) {
    for (std::size_t i = 0; i < w.size(); ++i) w[i] += error * (w[i] - r.values.initial.at(name)[i]);
  }
  return r;
}

TEST(Baselines, TakeAsManyStepsAsTheYardstickLasts) {
  const Baselines few = run_baselines(Dtype::kBf16, 2, record);
  EXPECT_EQ(few.steps, 2);
  EXPECT_EQ(few.why_fewer, "");
  const Baselines many = run_baselines(Dtype::kBf16, 20, record);
  EXPECT_EQ(many.steps, 2) << "20, 10, 5, 2";
  EXPECT_NE(many.why_fewer.find("first 2 of 20 steps"), std::string::npos) << many.why_fewer;
  EXPECT_NEAR(yardstick_error(many.own.values, many.truth.values), 0.08, 0.004);  // of 99% of the elements
  EXPECT_EQ(run_baselines(Dtype::kFp64, 20, record).steps, 20);
  const auto hopeless = [](Dtype dtype, std::int64_t) { return record(dtype, 20); };
  EXPECT_EQ(run_baselines(Dtype::kBf16, 20, hopeless).steps, 1);
}

// What check_run would allow counts, not the error of all tensors together.
TEST(Baselines, TheWorstTensorDecides) {
  const RunValues truth = values(0, 0);
  RunValues own = truth;
  for (std::size_t i = 0; i < own.final_weights["b"].size(); ++i)
    own.final_weights["b"][i] += 0.2 * (truth.final_weights.at("b")[i] - truth.initial.at("b")[i]);
  EXPECT_NEAR(yardstick_error(own, truth), 0.2, 0.02) << "of both together it is 0.14";
  EXPECT_GT(yardstick_error(own, truth), kMostYardstickError);
}

}  // namespace
}  // namespace ref5d
