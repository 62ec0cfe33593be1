// Text drawn from a model.
#include "common/train/generate.h"

#include <optional>

#include "tests/support/model_testing.h"

namespace ref5d::testing {
namespace {

class Generated : public ::testing::Test {
 protected:
  Generated() : config_(small()) {
    config_.vocab = 128;
    config_.init_std = 1;  // so that every token matters
    trainer_.emplace(options_for(config_, 1, 1), data_.emplace(some_rows(config_, 1)));
  }
  std::string text(const std::string& prompt, double temperature, std::uint64_t seed = 1) {
    return generate_text(*trainer_, prompt, 40, temperature, seed).substr(prompt.size());
  }
  GptConfig config_;
  std::optional<Dataset> data_;
  std::optional<Trainer> trainer_;
};

TEST_F(Generated, LooksBackOneSequence) {
  ASSERT_EQ(config_.seq, 7);
  EXPECT_EQ(text("xbcdefgh", 1e-6), text("ybcdefgh", 1e-6)) << "the first of eight is out of sight";
  EXPECT_NE(text("axcdefgh", 1e-6), text("aycdefgh", 1e-6));
}

TEST_F(Generated, DrawsByTemperature) {
  EXPECT_EQ(text("abc", 1e-6, 1), text("abc", 1e-6, 2)) << "the likeliest token, whatever is drawn";
  EXPECT_NE(text("abc", 100, 1), text("abc", 100, 2));
  EXPECT_NE(text("abc", 100, 1), text("abc", 1, 1));
  EXPECT_EQ(text("abc", 1, 5), text("abc", 1, 5));
}

}  // namespace
}  // namespace ref5d::testing
