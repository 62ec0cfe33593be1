// The list of kernel cases, and the comparison of one build's values with another's.
#include "common/tools/kernel_cases.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <map>
#include <set>

#include "common/device/device.h"
#include "common/device/error.h"
#include "common/tools/kernel_bench.h"
#include "common/tools/kernel_compare.h"
#include "common/tools/kernel_coverage.h"
#include "common/tools/kernel_program.h"
#include "tests/support/io_testing.h"
#include "tests/support/kernel_testing.h"

namespace ref5d::testing {
namespace {

std::vector<KernelCase> cases_named(const std::string& part) {
  std::vector<KernelCase> cases = kernel_cases(CaseSize::kSmall);
  std::erase_if(cases, [&](const KernelCase& one) { return one.label().find(part) == std::string::npos; });
  return cases;
}

// The program, with what it prints.
struct Printed {
  int status;
  std::string text;
};
Printed run(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "kernels");
  std::FILE* const out = std::tmpfile();
  Printed printed{run_kernels(static_cast<int>(arguments.size()), arguments.data(), out), ""};
  std::rewind(out);
  for (int c = 0; (c = std::fgetc(out)) != EOF;) printed.text += static_cast<char>(c);
  std::fclose(out);
  return printed;
}

TEST(KernelCases, LaunchEveryKernelOfTheSource) {
  const std::set<std::string> launched = kernels_launched(kernel_cases(CaseSize::kSmall));
  const std::set<std::string> all = kernels_in_source(REF5D_SOURCE_DIR);
  EXPECT_GT(all.size(), 40U);
  for (const char* known : {"add", "attention_forward", "gemm_hand", "sort_scan", "gemm_copy_corner"})
    EXPECT_TRUE(all.contains(known)) << known;
  for (const std::string& name : all) EXPECT_TRUE(launched.contains(name)) << name;
}

TEST(KernelCases, ALeftOutKernelFailsTheCoverage) {
  const Printed printed = run({"--coverage", "--only", "rmsnorm"});
  EXPECT_EQ(printed.status, kExitCheckFailed);
  expect_contains(printed.text, "FAIL adamw: no case launches it");
  EXPECT_EQ(printed.text.find("FAIL rmsnorm_forward:"), std::string::npos) << printed.text;
}

TEST(KernelCases, NamesDifferAndBothSizesHaveTheSameOperations) {
  std::set<std::string> labels, small, large;
  const auto operation = [](const KernelCase& one) { return one.name.substr(0, one.name.find('/')); };
  for (const KernelCase& one : kernel_cases(CaseSize::kSmall)) {
    EXPECT_TRUE(labels.insert(one.label()).second) << one.label();
    small.insert(operation(one));
  }
  for (const KernelCase& one : kernel_cases(CaseSize::kLarge)) large.insert(operation(one));
  if (Device::mode() != "cuda") small.erase("gemm_tensor_core");  // there is nothing to time
  EXPECT_EQ(small, large);
}

// Whatever the kernels find in the memory that they overwrite, and however often they run.
TEST(KernelCases, ValuesRepeatBitByBit) {
  for (const KernelCase& one : kernel_cases(CaseSize::kSmall)) {
    const std::vector<CaseValue> first = run_case(one), second = run_case(one, CaseFill::kNothing);
    ASSERT_EQ(first.size(), second.size());
    for (std::size_t i = 0; i < first.size(); ++i) {
      EXPECT_TRUE(first[i].value.data == second[i].value.data) << first[i].name;
      for (const double x : first[i].value.to_doubles()) ASSERT_FALSE(std::isnan(x)) << first[i].name;
    }
  }
}

TEST(KernelCases, PassAgainstTheirOwnValues) {
  const TempDir dir;
  const std::string file = dir.path("values");
  EXPECT_EQ(run({"--write", file.c_str()}).status, kExitOk);
  const std::string json = dir.path("report.json");
  const Printed printed = run({"--compare", file.c_str(), "--json", json.c_str()});
  EXPECT_EQ(printed.status, kExitOk) << printed.text;
  EXPECT_EQ(printed.text.find("FAIL"), std::string::npos) << printed.text;
  expect_contains(read_file(json), "\"rmsnorm/65x33/fp32/y\"");
}

// Moves the largest element by so much of the tensor's norm; the largest, since rounding changes it least.
void disturb(HostTensor& tensor, double relative) {
  std::vector<double> x = tensor.to_doubles();
  double sum = 0;
  for (const double e : x) sum += e * e;
  *std::max_element(x.begin(), x.end(), [](double a, double b) { return std::abs(a) < std::abs(b); }) +=
      relative * std::sqrt(sum);
  tensor = HostTensor::from_doubles(x, tensor.shape, tensor.dtype);
}

// The values of one case with one of them disturbed by `times` its limit, compared with those of the kernels.
Printed compare_disturbed(const std::string& file, const std::string& wrong, double times) {
  std::vector<CaseValue> values;
  for (const KernelCase& one : cases_named("rmsnorm/3x300")) {
    for (CaseValue& v : run_case(one)) {
      if (v.name == wrong) disturb(v.value, times * value_limit(v.precision, v.value.numel()));
      values.push_back(std::move(v));
    }
  }
  write_values(file, values);
  return run({"--compare", file.c_str(), "--only", "rmsnorm/3x300"});
}

TEST(KernelCases, AValueThatDepartsFailsByName) {
  const TempDir dir;
  for (const std::string wrong :
       {"rmsnorm/3x300/fp64/dx", "rmsnorm/3x300/fp32/dx", "rmsnorm/3x300/bf16/dx", "rmsnorm/3x300/bf16/rstd"}) {
    EXPECT_EQ(compare_disturbed(dir.path("values"), wrong, 0.4).status, kExitOk) << wrong;
    const Printed printed = compare_disturbed(dir.path("values"), wrong, 2);
    EXPECT_EQ(printed.status, kExitCheckFailed) << wrong;
    expect_contains(printed.text, "\nFAIL " + wrong + ": error");
    expect_contains(printed.text, "11 of 12 values");
  }
}

// Casts, masks and random numbers have one right answer.
TEST(KernelCases, ABitOfAnExactValueCounts) {
  const CaseValue value{"x", HostTensor::from_doubles({0.0, 1, 2}, {3}, Dtype::kFp32), std::nullopt};
  const TempDir dir;
  const auto compare = [&](const HostTensor& reference) {
    write_values(dir.path("values"), {{"x", reference, std::nullopt}});
    return compare_value(value, open_values(dir.path("values")));
  };
  EXPECT_TRUE(compare(value.value).pass);
  EXPECT_FALSE(compare(HostTensor::from_doubles({-0.0, 1, 2}, {3}, Dtype::kFp32)).pass);
  EXPECT_FALSE(compare(HostTensor::from_doubles({0, 1, 2}, {3}, Dtype::kFp64)).pass);
}

TEST(KernelCases, InfinitiesAndNaN) {
  const double infinity = std::numeric_limits<double>::infinity(), nan = std::nan("");
  const auto error = [](const std::vector<double>& a, const std::vector<double>& b) {
    const auto host = [](const std::vector<double>& v) {
      return HostTensor::from_doubles(v, {static_cast<std::int64_t>(v.size())}, Dtype::kFp64);
    };
    return value_error(host(a), host(b));
  };
  EXPECT_EQ(error({-infinity, 3}, {-infinity, 3}), 0);
  EXPECT_DOUBLE_EQ(error({-infinity, 3.5, 4}, {-infinity, 3, 4}), 0.1);
  for (const double wrong : {infinity, nan, 0.0}) EXPECT_EQ(error({wrong, 3}, {-infinity, 3}), infinity) << wrong;
  EXPECT_EQ(error({nan, 3}, {nan, 3}), infinity);
  EXPECT_EQ(error({infinity}, {1}), infinity);
  EXPECT_EQ(error({1}, {0}), infinity);
  EXPECT_EQ(error({0}, {0}), 0);
  EXPECT_EQ(error({1, 2}, {1}), infinity);
}

TEST(KernelCases, AFileThatLacksAValueOrIsAnotherIsRefused) {
  const TempDir dir;
  const std::string file = dir.path("values");
  write_values(file, {{"something", HostTensor::from_doubles({1}, {1}, Dtype::kFp64), Dtype::kFp64}});
  const Printed printed = run({"--compare", file.c_str(), "--only", "gelu/33/fp32"});
  EXPECT_EQ(printed.status, kExitCheckFailed);
  expect_contains(printed.text, "FAIL gelu/33/fp32/y: ");
  expect_contains(printed.text, "not in the file");

  const auto refused = [](std::vector<const char*> arguments) {
    return error_of<InputError>([&] { (void)run(std::move(arguments)); });
  };
  expect_contains(refused({"--compare", dir.path("missing").c_str()}), "cannot open");
  write_safetensors(file, {{"x", HostTensor::from_doubles({1}, {1}, Dtype::kFp64)}});
  expect_contains(refused({"--compare", file.c_str()}), "does not hold the kernels' values");
  expect_contains(refused({"--compare", file.c_str(), "--coverage"}), "give one of");
  expect_contains(refused({}), "give one of");
  expect_contains(refused({"--write", file.c_str(), "--only", "nothing like it"}), "no case");
}

TEST(KernelCases, TimesHaveABound) {
  const std::vector<KernelCase> cases = cases_named("gemm_hand/70x67x19/fp32");
  ASSERT_EQ(cases.size(), 1U);
  const std::vector<StepTime> times = time_case(cases[0], 1, false);
  ASSERT_EQ(times.size(), 5U);
  EXPECT_EQ(times[0].op, "gemm_nn");
  EXPECT_EQ(times[0].flops, 2.0 * 70 * 67 * 19);
  EXPECT_EQ(times[0].bytes, 4.0 * (70 * 19 + 19 * 67 + 70 * 67));
  EXPECT_GT(times[0].ms, 0);
  ASSERT_EQ(times[0].kernels.size(), 1U);
  EXPECT_TRUE(times[0].kernels.begin()->first.starts_with("gemm_hand<"));
  EXPECT_DOUBLE_EQ(times[0].bound_ms({1e9, 1e12}), times[0].bytes / 1e6);
  EXPECT_DOUBLE_EQ(times[0].bound_ms({1e15, 1e9}), times[0].flops / 1e6);
}

}  // namespace
}  // namespace ref5d::testing
