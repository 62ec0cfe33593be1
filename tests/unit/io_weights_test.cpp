#include <gtest/gtest.h>

#include <filesystem>

#include "common/device/error.h"
#include "common/io/safetensors.h"
#include "common/io/weights_reader.h"
#include "tests/support/io_testing.h"

namespace ref5d {
namespace {

namespace fs = std::filesystem;
using testing::error_of;
using testing::expect_contains;
using testing::TempDir;

HostTensor numbers(const std::vector<double>& values) {
  const auto n = static_cast<std::int64_t>(values.size());
  return HostTensor::from_doubles(values, {n}, Dtype::kFp32);
}

// A folder with two shards and their index.
void put_shards(const TempDir& dir) {
  write_safetensors(dir.path("model-00001-of-00002.safetensors"), {{"a", numbers({1, 2})}, {"c", numbers({3})}},
                    {{"format", "pt"}, {"n", "1"}});
  write_safetensors(dir.path("model-00002-of-00002.safetensors"), {{"b", numbers({4, 5, 6})}}, {{"format", "pt"}, {"n", "2"}});
  dir.put("model.safetensors.index.json", R"({"metadata":{"total_size":24},"weight_map":{"a":"model-00001-of-00002.safetensors",
    "b":"model-00002-of-00002.safetensors","c":"model-00001-of-00002.safetensors"}})");
}

TEST(IoWeights, OneFileByItselfOrInAFolder) {
  const TempDir dir;
  write_safetensors(dir.path("model.safetensors"), {{"x", numbers({1, 2, 3})}}, {{"k", "v"}});
  for (const std::string& path : {dir.path(), dir.path("model.safetensors")}) {
    const WeightsReader weights(path);
    EXPECT_EQ(weights.names(), std::vector<std::string>{"x"});
    EXPECT_EQ(weights.info("x").shape, std::vector<std::int64_t>{3});
    EXPECT_EQ(weights.read("x").to_doubles(), (std::vector<double>{1, 2, 3}));
    EXPECT_EQ(weights.read_range("x", 1, 1).to_doubles(), std::vector<double>{2});
    EXPECT_EQ(weights.metadata().at("k"), "v");
    expect_contains(error_of<InputError>([&] { (void)weights.read("y"); }), path + " holds no tensor 'y'");
  }
}

TEST(IoWeights, ShardsByTheirIndex) {
  const TempDir dir;
  put_shards(dir);
  for (const std::string& path : {dir.path(), dir.path("model.safetensors.index.json")}) {
    const WeightsReader weights(path);
    EXPECT_EQ(weights.names(), (std::vector<std::string>{"a", "b", "c"}));
    EXPECT_TRUE(weights.contains("b"));
    EXPECT_FALSE(weights.contains("d"));
    EXPECT_EQ(weights.read("a").to_doubles(), (std::vector<double>{1, 2}));
    EXPECT_EQ(weights.read("b").to_doubles(), (std::vector<double>{4, 5, 6}));
    EXPECT_EQ(weights.read("c").to_doubles(), std::vector<double>{3});
    EXPECT_EQ(weights.metadata(), (Metadata{{"format", "pt"}, {"n", "1"}}));
  }
}

TEST(IoWeights, AMissingOrIncompleteShardIsNamed) {
  const TempDir dir;
  put_shards(dir);
  write_safetensors(dir.path("model-00002-of-00002.safetensors"), {{"other", numbers({4})}});
  expect_contains(error_of<InputError>([&] { const WeightsReader weights(dir.path()); }),
                  "tensor 'b' is said to be in model-00002-of-00002.safetensors, which does not hold it");
  fs::remove(dir.path("model-00002-of-00002.safetensors"));
  expect_contains(error_of<InputError>([&] { const WeightsReader weights(dir.path()); }),
                  "the shard model-00002-of-00002.safetensors is missing");
  dir.put("model-00002-of-00002.safetensors", "short");
  expect_contains(error_of<InputError>([&] { const WeightsReader weights(dir.path()); }),
                  "model-00002-of-00002.safetensors is not a safetensors file");
}

TEST(IoWeights, BadPathsAndIndexes) {
  const TempDir dir;
  const auto message = [&] { return error_of<InputError>([&] { const WeightsReader weights(dir.path()); }); };
  expect_contains(message(), "holds neither model.safetensors nor model.safetensors.index.json");
  dir.put("latest", "step_2");
  expect_contains(message(), "give one of the checkpoints in it");
  expect_contains(error_of<InputError>([&] { const WeightsReader weights(dir.path("absent.safetensors")); }), "No such file");
  expect_contains(error_of<InputError>([&] { const WeightsReader weights(dir.path("absent.json")); }), "No such file");
  dir.put("model.safetensors.index.json", "{");
  expect_contains(message(), "index.json is not valid JSON");
  for (const char* text : {"{}", "[]", R"({"weight_map":[]})"}) {
    dir.put("model.safetensors.index.json", text);
    expect_contains(message(), "no object weight_map");
  }
  for (const char* file : {"1", R"("")", R"("../x")", R"("/etc/passwd")"}) {
    dir.put("model.safetensors.index.json", std::string(R"({"weight_map":{"a":)") + file + "}}");
    expect_contains(message(), "must give tensor 'a' the name of a file");
  }
}

}  // namespace
}  // namespace ref5d
