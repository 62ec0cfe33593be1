#include "common/tools/dump_compare.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <random>
#include <tuple>

#include "common/device/error.h"
#include "common/io/file.h"
#include "common/io/json.h"
#include "common/io/safetensors.h"

namespace ref5d {
namespace {

// A safetensors file, written here so that the test does not depend on the suite's writer.
void write_dump(const std::string& path, const NamedTensors& tensors, const Metadata& metadata = {}) {
  Json header = Json::object();
  if (!metadata.empty()) {
    Json& entries = header["__metadata__"];
    for (const auto& [key, value] : metadata) entries[key] = value;
  }
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    const char* dtype = tensor.dtype == Dtype::kFp64   ? "F64"
                        : tensor.dtype == Dtype::kFp32 ? "F32"
                        : tensor.dtype == Dtype::kBf16 ? "BF16"
                                                       : "I32";
    header[name] = Json::object({{"dtype", dtype},
                                 {"shape", Json::array_of(tensor.shape)},
                                 {"data_offsets", Json::array({data.size(), data.size() + tensor.data.size()})}});
    data.append(reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size());
  }
  std::string text = header.dump();
  while (text.size() % 8 != 0) text += ' ';
  const std::uint64_t length = text.size();
  std::string file(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) file[i] = static_cast<char>(length >> (8 * i) & 0xFF);
  write_file(path, file + text + data);
}

HostTensor random_tensor(std::vector<std::int64_t> shape, Dtype dtype, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  std::int64_t n = 1;
  for (std::int64_t d : shape) n *= d;
  std::vector<double> values(static_cast<std::size_t>(n));
  for (double& x : values) x = normal(random);
  return HostTensor::from_doubles(values, std::move(shape), dtype);
}

// Changes one element relative to the tensor's norm.
void disturb(HostTensor& tensor, std::size_t at, double relative) {
  std::vector<double> values = tensor.to_doubles();
  double sum = 0;
  for (double x : values) sum += x * x;
  values[at] += relative * std::sqrt(sum);
  tensor = HostTensor::from_doubles(values, tensor.shape, tensor.dtype);
}

NamedTensors example(Dtype dtype = Dtype::kFp64) {
  NamedTensors t;
  unsigned seed = 1;
  for (const char* name : {"hidden/0", "hidden/1", "logits", "sub/0/q", "sub/1/q"})
    t[name] = random_tensor({2, 3, 8}, dtype, seed++);
  t["loss"] = HostTensor::from_doubles({5.5}, {1}, dtype);
  for (const char* name :
       {"model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight", "model.layers.1.mlp.up_proj.weight"}) {
    for (const char* group : {"grad/", "final/", "init/"}) t[std::string(group) + name] = random_tensor({6, 8}, dtype, seed++);
  }
  t["tokens"] = HostTensor::from_doubles({1, 2, 3, 4, 5, 6}, {2, 3}, Dtype::kInt32);
  return t;
}

class DumpCompareTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("ref5d_compare_test_" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  [[nodiscard]] std::string path(const std::string& name) const { return folder_ / name; }

  struct Outcome {
    int status;
    std::string out, err;
  };
  static std::string drain(std::FILE* file) {
    std::string text(static_cast<std::size_t>(std::ftell(file)), '\0');
    std::rewind(file);
    EXPECT_EQ(std::fread(text.data(), 1, text.size(), file), text.size());
    std::fclose(file);
    return text;
  }
  static Outcome run(const std::vector<std::string>& arguments) {
    std::vector<const char*> argv{"compare"};
    for (const std::string& a : arguments) argv.push_back(a.c_str());
    std::FILE* out = std::tmpfile();
    std::FILE* err = std::tmpfile();
    const int status = run_compare(static_cast<int>(argv.size()), argv.data(), out, err);
    return {status, drain(out), drain(err)};
  }
  Outcome compare(const NamedTensors& a, const NamedTensors& b, std::vector<std::string> flags = {}) {
    write_dump(path("a"), a);
    write_dump(path("b"), b);
    flags.insert(flags.begin(), {path("a"), path("b")});
    return run(flags);
  }
  std::filesystem::path folder_;
};

std::string first_of(const std::string& text) {
  const std::string key = "first that departs: ";
  const std::size_t at = text.find(key);
  if (at == std::string::npos) return "none";
  return text.substr(at + key.size(), text.find(' ', at + key.size()) - at - key.size());
}

TEST_F(DumpCompareTest, EqualDumpsAgreeInEveryDtype) {
  for (Dtype dtype : {Dtype::kFp64, Dtype::kFp32, Dtype::kBf16}) {
    const Outcome o = compare(example(dtype), example(dtype));
    EXPECT_EQ(o.status, 0) << o.out << o.err;
    EXPECT_NE(o.out.find("all 16 tensors agree"), std::string::npos) << o.out;
    EXPECT_NE(o.out.find("sub/0/q"), std::string::npos);
    EXPECT_EQ(compare(example(dtype), example(dtype), {"--bitwise"}).status, 0);
  }
}

TEST_F(DumpCompareTest, AnyTensorCanDepartAndIsNamed) {
  const NamedTensors b = example();
  for (const auto& [name, tensor] : b) {
    NamedTensors a = b;
    if (tensor.dtype == Dtype::kInt32) {
      std::vector<double> values = tensor.to_doubles();
      values[4] += 1;
      a[name] = HostTensor::from_doubles(values, tensor.shape, tensor.dtype);
    } else {
      disturb(a[name], a[name].to_doubles().size() - 1, 1e-9);
    }
    const Outcome o = compare(a, b);
    EXPECT_EQ(o.status, 1) << name;
    EXPECT_EQ(first_of(o.out), name) << o.out;
    EXPECT_NE(o.out.find("1 of 16 tensors depart"), std::string::npos) << o.out;
  }
}

TEST_F(DumpCompareTest, TheFirstByDepthIsNamedNotTheLargestOrTheFirstByName) {
  const NamedTensors b = example();
  NamedTensors a = b;
  for (const char* name : {"grad/model.embed_tokens.weight", "hidden/1", "logits", "grad/model.layers.1.mlp.up_proj.weight"}) {
    disturb(a[name], 0, 0.5);
  }
  disturb(a["sub/1/q"], 3, 1e-9);
  EXPECT_EQ(first_of(compare(a, b).out), "sub/1/q");
  a["sub/1/q"] = b.at("sub/1/q");
  a["hidden/1"] = b.at("hidden/1");
  a["logits"] = b.at("logits");
  EXPECT_EQ(first_of(compare(a, b).out), "grad/model.layers.1.mlp.up_proj.weight") << "backward starts at the last layer";
}

TEST_F(DumpCompareTest, DefaultTolerancesFollowTheCoarserDtype) {
  const struct {
    Dtype a, b;
    double holds, departs;
  } cases[] = {{Dtype::kFp64, Dtype::kFp64, 1e-12, 1e-10},
               {Dtype::kFp32, Dtype::kFp32, 1e-6, 1e-4},
               {Dtype::kFp32, Dtype::kFp64, 1e-6, 1e-4},
               {Dtype::kFp64, Dtype::kBf16, 1e-3, 5e-2},
               {Dtype::kBf16, Dtype::kBf16, 1e-3, 5e-2}};
  for (const auto& c : cases) {
    NamedTensors a{{"logits", random_tensor({8, 8}, Dtype::kBf16, 1)}}, b = a;
    a["logits"] = HostTensor::from_doubles(a["logits"].to_doubles(), {8, 8}, c.a);
    b["logits"] = HostTensor::from_doubles(b["logits"].to_doubles(), {8, 8}, c.b);
    NamedTensors near = a, far = a;
    disturb(near["logits"], 5, c.holds);
    disturb(far["logits"], 5, c.departs);
    EXPECT_EQ(compare(near, b).status, 0) << dtype_name(c.a) << dtype_name(c.b);
    EXPECT_EQ(compare(far, b).status, 1) << dtype_name(c.a) << dtype_name(c.b);
    EXPECT_EQ(compare(far, b, {"--tolerance", "0.1"}).status, 0);
  }
}

// Losses and norms are written in fp64 whatever computed them. The metadata says what did, else the dtypes of the others.
TEST_F(DumpCompareTest, WhatWasComputedInADtypeIsJudgedByIt) {
  for (const auto& [dtype, holds, departs] :
       {std::tuple{Dtype::kFp64, 1e-12, 1e-10}, {Dtype::kFp32, 1e-6, 1e-4}, {Dtype::kBf16, 1e-3, 5e-2}}) {
    const Metadata metadata{{"dtype", dtype_name(dtype)}};
    for (const char* name : {"loss", "grad_norm", "step_loss", "grad/lm_head.weight", "final/lm_head.weight"}) {
      NamedTensors b{{name, random_tensor({1}, Dtype::kFp64, 1)}}, near = b, far = b;
      disturb(near[name], 0, holds);
      disturb(far[name], 0, departs);
      write_dump(path("b"), b, metadata);
      write_dump(path("near"), near, metadata);
      write_dump(path("far"), far, metadata);
      write_dump(path("exact"), b, {{"dtype", "fp64"}});
      EXPECT_EQ(run({path("near"), path("b")}).status, 0) << name << dtype_name(dtype);
      EXPECT_EQ(run({path("far"), path("b")}).status, 1) << name << dtype_name(dtype);
      EXPECT_EQ(run({path("near"), path("exact")}).status, 0) << "the coarser of the two";
      EXPECT_EQ(run({path("exact"), path("near")}).status, 0);
      for (NamedTensors* t : {&b, &near, &far}) (*t)["logits"] = random_tensor({8, 8}, dtype, 2);
      EXPECT_EQ(compare(near, b).status, 0) << name << " beside logits in " << dtype_name(dtype);
      EXPECT_EQ(compare(far, b).status, 1) << name << " beside logits in " << dtype_name(dtype);
    }
  }
}

TEST_F(DumpCompareTest, WhatWasNotComputedKeepsTheToleranceOfItsOwnDtype) {
  for (const char* name : {"init/lm_head.weight", "lm_head.weight", "m/lm_head.weight"}) {
    NamedTensors a{{name, random_tensor({4, 4}, Dtype::kFp32, 1)}, {"logits", random_tensor({4}, Dtype::kBf16, 2)}}, b = a;
    disturb(a[name], 0, 1e-4);
    write_dump(path("a"), a, {{"dtype", "bf16"}});
    write_dump(path("b"), b, {{"dtype", "bf16"}});
    const Outcome o = run({path("a"), path("b")});
    EXPECT_EQ(o.status, 1) << name;
    EXPECT_EQ(first_of(o.out), name);
  }
}

TEST_F(DumpCompareTest, MissingTensorsAndOtherShapesDepart) {
  const NamedTensors b = example();
  NamedTensors a = b;
  a.erase("hidden/0");
  Outcome o = compare(a, b);
  EXPECT_EQ(o.status, 1);
  EXPECT_EQ(first_of(o.out), "hidden/0");
  EXPECT_NE(o.out.find("only in B"), std::string::npos) << o.out;
  EXPECT_EQ(o.out.find("first whose values depart"), std::string::npos);
  EXPECT_NE(o.out.find("tensors that both have agree"), std::string::npos) << o.out;
  write_dump(path("a"), a);
  write_dump(path("b"), b);
  EXPECT_EQ(run({path("a"), path("b"), "--only", "grad/"}).status, 0);
  EXPECT_EQ(run({path("a"), path("b"), "--only", "hidden/"}).status, 1);
  EXPECT_EQ(run({path("a"), path("b"), "--only", "gradient"}).status, 2);
  disturb(a["logits"], 0, 1e-3);
  o = compare(b, a);
  EXPECT_EQ(o.status, 1);
  EXPECT_NE(o.out.find("only in A"), std::string::npos) << o.out;
  EXPECT_NE(o.out.find("first whose values depart: logits"), std::string::npos) << o.out;

  NamedTensors turned = b;
  turned["logits"].shape = {2, 8, 3};
  o = compare(turned, b);
  EXPECT_EQ(o.status, 1);
  EXPECT_EQ(first_of(o.out), "logits");
  EXPECT_NE(o.out.find("shape [2, 8, 3] in A, [2, 3, 8] in B"), std::string::npos) << o.out;
}

TEST_F(DumpCompareTest, AScalarMayBeWrittenWithOrWithoutADim) {
  NamedTensors a = example();
  a["loss"].shape = {};
  EXPECT_EQ(compare(a, example()).status, 0);
  EXPECT_EQ(compare(a, example(), {"--bitwise"}).status, 1) << "bitwise asks for one shape";
}

TEST_F(DumpCompareTest, NotANumberDepartsEvenOnBothSides) {
  NamedTensors a = example();
  std::vector<double> values = a["hidden/1"].to_doubles();
  values[8] = std::numeric_limits<double>::quiet_NaN();
  a["hidden/1"] = HostTensor::from_doubles(values, a["hidden/1"].shape, Dtype::kFp64);
  for (const Outcome& o : {compare(a, example()), compare(example(), a), compare(a, a, {"--tolerance", "1e9"})}) {
    EXPECT_EQ(o.status, 1);
    EXPECT_EQ(first_of(o.out), "hidden/1");
    EXPECT_NE(o.out.find("not comparable at [0, 1, 0]"), std::string::npos) << o.out;
  }
  EXPECT_EQ(compare(a, a, {"--bitwise"}).status, 0) << "the same bytes";
}

TEST_F(DumpCompareTest, BitwiseSeesTheLastBitTheSignOfZeroAndTheDtype) {
  const NamedTensors b{{"logits", HostTensor::from_doubles({1, 0, 3}, {3}, Dtype::kFp32)}};
  NamedTensors last_bit{{"logits", HostTensor::from_doubles({1, 0, std::nextafterf(3, 4)}, {3}, Dtype::kFp32)}};
  NamedTensors sign{{"logits", HostTensor::from_doubles({1, -0.0, 3}, {3}, Dtype::kFp32)}};
  NamedTensors wide{{"logits", HostTensor::from_doubles({1, 0, 3}, {3}, Dtype::kFp64)}};
  for (const NamedTensors& a : {last_bit, sign, wide}) {
    EXPECT_EQ(compare(a, b).status, 0);
    EXPECT_EQ(compare(a, b, {"--bitwise"}).status, 1);
  }
  EXPECT_NE(compare(sign, b, {"--bitwise"}).out.find("1 of 3 elements differ"), std::string::npos);
}

TEST_F(DumpCompareTest, TheLargestDifferenceIsLocated) {
  NamedTensors a = example();
  disturb(a["hidden/0"], 1 * 24 + 2 * 8 + 5, 0.1);
  EXPECT_NE(compare(a, example()).out.find("largest at [1, 2, 5]"), std::string::npos);
}

TEST_F(DumpCompareTest, AGradientThatIsRoundingOnlyIsMeasuredAgainstAllGradients) {
  NamedTensors b = example(), a = b;
  a["grad/model.layers.0.self_attn.k_proj.bias"] = HostTensor::from_doubles(std::vector<double>(64, 1e-18), {64}, Dtype::kFp64);
  b["grad/model.layers.0.self_attn.k_proj.bias"] =
      HostTensor::from_doubles(std::vector<double>(64, -1e-18), {64}, Dtype::kFp64);
  EXPECT_EQ(compare(a, b).status, 0);
  a["grad/model.layers.0.self_attn.k_proj.bias"] = HostTensor::from_doubles(std::vector<double>(64, 1e-14), {64}, Dtype::kFp64);
  EXPECT_EQ(compare(a, b).status, 1);
}

TEST_F(DumpCompareTest, MetadataAndADifferentStartAreNotes) {
  const std::string long_text(1000, 'z');
  write_dump(path("a"), example(), {{"seed", "1"}, {"same", "x"}, {"long", long_text + "left"}});
  write_dump(path("b"), example(), {{"seed", "2"}, {"same", "x"}, {"long", long_text + "right"}, {"more", "y"}});
  Outcome o = run({path("a"), path("b")});
  EXPECT_EQ(o.status, 0);
  EXPECT_NE(o.out.find("note: metadata seed: 1 in A, 2 in B"), std::string::npos) << o.out;
  EXPECT_EQ(o.out.find("metadata same"), std::string::npos);
  EXPECT_NE(o.out.find("zleft in A, ...zz"), std::string::npos) << "a late difference is shown: " << o.out;
  EXPECT_NE(o.out.find("metadata more: absent in A, y in B"), std::string::npos) << o.out;
  NamedTensors a = example();
  disturb(a["init/model.embed_tokens.weight"], 0, 0.1);
  o = compare(a, example());
  EXPECT_NE(o.out.find("note: the two do not start alike: init/model.embed_tokens.weight"), std::string::npos) << o.out;
}

TEST_F(DumpCompareTest, LongTablesAreCutUnlessAllIsAsked) {
  NamedTensors b;
  for (int i = 0; i < 230; ++i) b["hidden/" + std::to_string(i)] = random_tensor({2}, Dtype::kFp64, static_cast<unsigned>(i));
  NamedTensors a = b;
  disturb(a["hidden/77"], 0, 0.1);
  const Outcome cut = compare(a, b), whole = compare(a, b, {"--all"});
  EXPECT_EQ(cut.status, 1);
  EXPECT_EQ(whole.status, 1);
  EXPECT_NE(cut.out.find("hidden/77"), std::string::npos);
  EXPECT_EQ(cut.out.find("hidden/78"), std::string::npos);
  EXPECT_NE(cut.out.find("229 tensors within tolerance are not listed"), std::string::npos) << cut.out;
  EXPECT_NE(whole.out.find("hidden/78"), std::string::npos);
}

TEST_F(DumpCompareTest, BadUsageAndFilesEndWithStatusTwoAndOneLine) {
  write_dump(path("a"), example());
  write_file(path("empty"), "");
  write_file(path("text"), "this is not a file of tensors at all");
  write_dump(path("none"), {});
  const std::vector<std::vector<std::string>> cases{{},
                                                    {path("a")},
                                                    {path("a"), path("absent")},
                                                    {path("absent"), path("a")},
                                                    {path("a"), path("empty")},
                                                    {path("a"), path("text")},
                                                    {path("none"), path("none")},
                                                    {path("a"), path("a"), path("a")},
                                                    {path("a"), path("a"), "--tolerance", "-1"},
                                                    {path("a"), path("a"), "--tolerance", "nan"},
                                                    {path("a"), path("a"), "--tolerance"},
                                                    {path("a"), path("a"), "--tolerance", "1", "--bitwise"},
                                                    {path("a"), path("a"), "--bitwize"}};
  for (const auto& arguments : cases) {
    const Outcome o = run(arguments);
    EXPECT_EQ(o.status, 2) << ::testing::PrintToString(arguments) << o.out;
    EXPECT_EQ(o.out, "");
    EXPECT_EQ(o.err.find('\n'), o.err.size() - 1) << o.err;
    EXPECT_EQ(o.err.find("compare: "), 0u) << o.err;
  }
  const Outcome help = run({"--help"});
  EXPECT_EQ(help.status, 0);
  EXPECT_NE(help.out.find("--tolerance"), std::string::npos);
}

// Values that are equal once read may be other bytes in the file.
TEST_F(DumpCompareTest, BitwiseAsksForTheFilesDtype) {
  const std::string folder = ::testing::TempDir(), a = folder + "/f32", b = folder + "/f16";
  const auto write = [](const std::string& path, const char* dtype, const std::string& data) {
    std::string header =
        Json::object(
            {{"t",
              Json::object({{"dtype", dtype}, {"shape", Json::array({1})}, {"data_offsets", Json::array({0, data.size()})}})}})
            .dump();
    while (header.size() % 8 != 0) header += ' ';
    std::string length(8, '\0');
    length[0] = static_cast<char>(header.size());
    write_file(path, length + header + data);
  };
  write(a, "F32", std::string("\0\0\x80\x3f", 4));
  write(b, "F16", std::string("\0\x3c", 2));
  const SafetensorsFile file_a(a), file_b(b);
  CompareSettings bitwise;
  bitwise.bitwise = true;
  EXPECT_FALSE(compare_dumps(file_a, file_b, {}).rows.at(0).departs) << "both are 1";
  EXPECT_TRUE(compare_dumps(file_a, file_b, bitwise).rows.at(0).departs);
  EXPECT_EQ(compare_dumps(file_a, file_b, bitwise).rows.at(0).note, "F32 in A, F16 in B");
}

}  // namespace
}  // namespace ref5d
