// Choices of experts that are kept, replayed, added up and read from files.
#include "common/model/route_log.h"

#include <limits>

#include "06_expert_parallel/route_file.h"
#include "common/device/error.h"
#include "common/io/safetensors.h"
#include "tests/support/io_testing.h"
#include "tests/support/kernel_testing.h"
#include "tests/support/model_testing.h"

namespace ref5d::testing {
namespace route_log_test {

// Choices of some tokens of layer 1, two each.
std::vector<double> pass(RouteLog& log, const Ints& sample, const Ints& order, const Ints& own) {
  const Context ctx(device().compute());
  const ResidualRows rows{.sample = ints(sample), .order = ints(order), .position = {}, .place = {}, .sequence = {}};
  return values_of(log.pass(ctx, rows, 1, device_ints(own, {static_cast<std::int64_t>(sample.size()), 2})));
}

TEST(RouteLogs, KeepWhatTokensChoseFirst) {
  Routes routes{3, 2, {}};
  RouteLog log(routes, RouteLog::Mode::kKeep);
  EXPECT_EQ(pass(log, {7, 7, 4}, {2, 0, 1}, {5, 1, 0, 3, 2, 6}), (std::vector<double>{5, 1, 0, 3, 2, 6}));
  EXPECT_EQ(routes.chosen.size(), 2U);
  EXPECT_EQ((routes.chosen.at({1, 7})), (Ints{0, 3, -1, -1, 5, 1}));
  EXPECT_EQ((routes.chosen.at({1, 4})), (Ints{-1, -1, 2, 6, -1, -1}));
  // Tokens of which something is known use it; the others' own choices are kept.
  EXPECT_EQ(pass(log, {4, 7, 4}, {1, 1, 0}, {0, 1, 0, 1, 0, 1}), (std::vector<double>{2, 6, 0, 1, 0, 1}));
  EXPECT_EQ((routes.chosen.at({1, 7})), (Ints{0, 3, 0, 1, 5, 1}));
}

TEST(RouteLogs, ReplayWhatIsKnownAndNothingElse) {
  Routes routes{2, 2, {{{1, 0}, {4, 2, 0, 1}}, {{1, 1}, {3, 2, -1, -1}}, {{0, 5}, {3, 2, 1, 0}}}};
  RouteLog log(routes, RouteLog::Mode::kReplay);
  EXPECT_EQ(pass(log, {0, 1, 0}, {1, 0, 0}, {7, 6, 7, 6, 7, 6}), (std::vector<double>{0, 1, 3, 2, 4, 2}));
  for (const auto& [sample, token] : {std::pair{1, 1}, {5, 0}}) {
    const std::string error = error_of<InputError>([&, s = sample, t = token] { (void)pass(log, {s}, {t}, {7, 6}); });
    expect_contains(error, "token " + std::to_string(token) + " of sample " + std::to_string(sample) + " in layer 1");
  }
}

TEST(RoutesOfTokens, SurviveTheWayBetweenHosts) {
  const Routes routes{2, 3, {{{0, 0}, {1, 2, 3, 4, 5, 6}}, {{3, 70000}, {-1, -1, -1, 0, 1, 2}}}};
  const Routes back = Routes::from_bytes(routes.to_bytes());
  EXPECT_EQ(back.seq, 2);
  EXPECT_EQ(back.top_k, 3);
  EXPECT_EQ(back.chosen, routes.chosen);
  const Routes none = Routes::from_bytes(Routes{5, 1, {}}.to_bytes());
  EXPECT_EQ(none.seq, 5);
  EXPECT_TRUE(none.chosen.empty());
}

// Ranks that know some tokens each.
TEST(RoutesOfTokens, MergeAndAreCounted) {
  const Routes first{2, 2, {{{0, 0}, {1, 2, -1, -1}}, {{0, 1}, {5, 6, 7, 0}}}};
  const Routes second{2, 2, {{{0, 0}, {3, 4, 5, 6}}, {{1, 0}, {-1, -1, 1, 0}}}};
  Routes all = first;
  EXPECT_EQ(all.merge(second), 2) << "both know them, and not alike";
  const decltype(all.chosen) expected{{{0, 0}, {1, 2, 5, 6}}, {{0, 1}, {5, 6, 7, 0}}, {{1, 0}, {-1, -1, 1, 0}}};
  EXPECT_EQ(all.chosen, expected);
  EXPECT_EQ(all.merge(first), 0);
  EXPECT_EQ(all.differences(first), 0);
  EXPECT_EQ(all.differences(all), 0);
  EXPECT_EQ(all.differences(second), 2);
  EXPECT_EQ(first.differences(second), 6) << "what is not known is a difference";
  EXPECT_EQ(Routes().differences(first), 6);
  EXPECT_EQ(first.differences({}), 0);
  EXPECT_EQ(all.differences({2, 2, {{{1, 0}, {4, 4, 1, 2}}}}), 3);
}

class RouteFiles : public ::testing::Test {
 protected:
  static constexpr std::int64_t kSamples = 3;

  RouteFiles() {
    model_ = preset("tiny-mixtral");
    model_.layers = 2;
    model_.seq = 4;
    for (std::int64_t layer = 0; layer < 2; ++layer) {
      std::vector<double> values;
      for (std::int64_t i = 0; i < kSamples * model_.seq; ++i) {
        values.push_back(static_cast<double>((i + layer) % 8));
        values.push_back(static_cast<double>((i + 3) % 8 == (i + layer) % 8 ? 0 : (i + 3) % 8));
      }
      put(layer, values, {kSamples, 4, 2});
    }
  }
  void put(std::int64_t layer, const std::vector<double>& values, const Shape& shape, Dtype dtype = Dtype::kInt32) {
    tensors_["sub/" + std::to_string(layer) + "/experts"] = HostTensor::from_doubles(values, shape, dtype);
  }
  [[nodiscard]] std::vector<double> values(std::int64_t layer) const {
    return tensors_.at("sub/" + std::to_string(layer) + "/experts").to_doubles();
  }
  Routes read(std::int64_t samples = kSamples, std::int64_t first = 0) {
    write_safetensors(dir_.path("routes.safetensors"), tensors_);
    return expert_parallel::read_routes(dir_.path("routes.safetensors"), model_, first, samples);
  }
  void expect_refused(const std::string& part, std::int64_t samples = kSamples) {
    const std::string error = error_of<InputError>([&] { (void)read(samples); });
    expect_contains(error, part);
    expect_contains(error, "routes.safetensors");
  }

  TempDir dir_;
  GptConfig model_;
  NamedTensors tensors_;
};

TEST_F(RouteFiles, HaveTheChoicesOfTheFirstSamples) {
  tensors_["logits"] = HostTensor::from_doubles({1}, {1}, Dtype::kFp32);  // a dump has more in it
  for (const std::int64_t samples : {kSamples, std::int64_t{1}}) {
    const Routes routes = read(samples);
    EXPECT_EQ(routes.seq, 4);
    EXPECT_EQ(routes.top_k, 2);
    EXPECT_EQ(routes.chosen.size(), static_cast<std::size_t>(2 * samples));
    for (const auto& [key, choices] : routes.chosen) {
      ASSERT_EQ(choices.size(), 8U);
      for (std::size_t i = 0; i < 8; ++i)
        EXPECT_EQ(choices[i], values(key.first)[static_cast<std::size_t>(key.second * 8) + i])
            << key.first << " " << key.second;
    }
  }
}

// Those of a run that continues another.
TEST_F(RouteFiles, AreForTheSamplesThatARunTrainsOn) {
  const Routes from_0 = read(2), from_40 = read(2, 40);
  ASSERT_EQ(from_40.chosen.size(), 4U);
  for (const auto& [key, choices] : from_0.chosen) EXPECT_EQ(from_40.chosen.at({key.first, 40 + key.second}), choices);
}

TEST_F(RouteFiles, ThatLackATensorOrSamplesAreRefused) {
  expect_refused("the run needs [at least 4, 4, 2]", 4);
  tensors_.erase("sub/1/experts");
  expect_refused("has no tensor sub/1/experts");
  EXPECT_THROW((void)expert_parallel::read_routes(dir_.path("none.safetensors"), model_, 0, 1), InputError);
}

TEST_F(RouteFiles, OfAnotherShapeAreRefused) {
  const std::vector<double> all = values(1);
  for (const Shape& shape : {Shape{4, kSamples, 2}, {kSamples, 8}, {kSamples, 2, 4}, {kSamples * 4 * 2}}) {
    put(1, all, shape);
    expect_refused("sub/1/experts has shape");
  }
}

TEST_F(RouteFiles, WithChoicesThatTheModelHasNotAreRefused) {
  const std::vector<double> right = values(1);
  for (const double wrong : {-1.0, 8.0, 100.0, right[16]}) {  // the last: one expert twice
    std::vector<double> changed = right;
    changed[17] = wrong;
    put(1, changed, {kSamples, 4, 2});
    expect_refused("a token's experts must be 2 different ones from 0 to 7");
    (void)read(2);  // of the third sample, which is not read
  }
}

// Scores, say, under the choices' name.
TEST_F(RouteFiles, OfNumbersThatAreNoIntegersAreRefused) {
  const std::vector<double> right = values(1);
  for (const Dtype dtype : {Dtype::kFp64, Dtype::kFp32, Dtype::kBf16}) {
    for (const double wrong : {right[17], 1.5, std::numeric_limits<double>::quiet_NaN()}) {
      std::vector<double> changed = right;
      changed[17] = wrong;
      put(1, changed, {kSamples, 4, 2}, dtype);
      expect_refused("sub/1/experts holds " + std::string(safetensors_dtype(dtype)));
    }
  }
}

}  // namespace route_log_test
}  // namespace ref5d::testing
