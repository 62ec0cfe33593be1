#include "common/model/config.h"

#include <gtest/gtest.h>

#include <utility>

namespace ref5d::testing {
namespace {

// Hugging Face's counts of the published models, and their RoPE bases.
TEST(Presets, HaveTheSizesOfThePublishedModels) {
  const std::pair<const char*, std::int64_t> counts[] = {
      {"gpt2-124m", 124439808}, {"gpt2-355m", 354823168}, {"gpt2-1.5b", 1557611200}, {"llama-1b", 1235814400},
      {"llama-3b", 3212749824}, {"llama-8b", 8030261248}, {"llama-70b", 70553706496}};
  for (const auto& [name, count] : counts) EXPECT_EQ(preset(name).parameter_count(), count) << name;
  for (const char* name : {"llama-1b", "llama-3b", "llama-8b", "llama-70b"}) EXPECT_EQ(preset(name).rope_theta, 500000) << name;
}

}  // namespace
}  // namespace ref5d::testing
