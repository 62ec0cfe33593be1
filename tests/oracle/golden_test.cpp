// PyTorch's values, which no code of this suite produced: hidden states, logits, losses, gradients, their norm, and three AdamW
// steps.
#include <gtest/gtest.h>

#include "tests/support/golden_testing.h"

namespace ref5d::testing {
namespace {

const std::vector<std::string> kCases = {
    "llama", "llama_mha_odd_vocab", "llama_ignored_labels", "llama_packed", "gpt2", "mixtral", "mixtral_top1", "deepseek"};

class Golden : public ::testing::TestWithParam<std::tuple<std::string, Dtype>> {};

TEST_P(Golden, EverythingAgrees) {
  const auto& [name, dtype] = GetParam();
  // In fp64 first: there a wrong golden value shows by any digit, and must not become the truth of a coarser yardstick.
  for (const Dtype checked : {Dtype::kFp64, dtype}) {
    const Verdict verdict = check_golden(read_golden(name), checked);
    EXPECT_GT(verdict.checks().size(), 20u);
    for (const Check& c : verdict.checks())
      EXPECT_TRUE(c.pass) << dtype_name(checked) << " " << c.name << ": " << c.value << " is beyond " << c.tolerance;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, Golden,
                         ::testing::Combine(::testing::ValuesIn(kCases),
                                            ::testing::Values(Dtype::kFp64, Dtype::kFp32, Dtype::kBf16)),
                         [](const auto& test) { return std::get<0>(test.param) + "_" + dtype_name(std::get<1>(test.param)); });

// One changed digit anywhere must be noticed: in fp64 the sixth, in the lower precisions the first.
class ChangedDigit : public ::testing::TestWithParam<std::tuple<std::string, Dtype>> {};

TEST_P(ChangedDigit, IsNoticed) {
  const auto& [case_name, dtype] = GetParam();
  const GoldenCase golden = read_golden(case_name);
  std::vector<std::string> names{"hidden/1", "logits", "loss", "grad_norm", "step_loss"};
  // Of gradients and weights a matrix and a vector each, the first and the last in order of name.
  for (const std::string section : {"grad/", "final/", "init/"}) {
    std::vector<std::string> all;
    for (const auto& [name, tensor] : golden.tensors)
      if (name.starts_with(section)) all.push_back(name);
    ASSERT_FALSE(all.empty()) << section;
    names.push_back(all.front());
    names.push_back(all.back());
  }
  for (const std::string& name : names) {
    GoldenCase changed = golden;
    HostTensor& t = changed.tensors.at(name);
    std::vector<double> values = t.to_doubles();
    // The greatest element, so that the change is a share of the tensor.
    auto greatest =
        std::max_element(values.begin(), values.end(), [](double a, double b) { return std::abs(a) < std::abs(b); });
    *greatest *= dtype == Dtype::kFp64 ? 1.000001 : 3.0;
    t = HostTensor::from_doubles(values, t.shape, t.dtype);
    EXPECT_FALSE(check_golden(changed, dtype).pass()) << name << " was changed and nothing noticed";
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, ChangedDigit,
                         ::testing::Combine(::testing::ValuesIn(kCases),
                                            ::testing::Values(Dtype::kFp64, Dtype::kFp32, Dtype::kBf16)),
                         [](const auto& test) { return std::get<0>(test.param) + "_" + dtype_name(std::get<1>(test.param)); });

}  // namespace
}  // namespace ref5d::testing
