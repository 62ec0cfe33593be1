#include <gtest/gtest.h>

#include <array>
#include <functional>

#include "common/device/error.h"
#include "common/io/file.h"
#include "common/io/llmc_model.h"
#include "tests/support/io_testing.h"

namespace ref5d {
namespace {

using testing::bytes_of;
using testing::error_of;
using testing::expect_contains;
using testing::TempDir;

struct Sizes {
  int max_seq, vocab, layers, heads, hidden, padded_vocab;
};

// The value of element (row, col) of a parameter: a code that bf16 holds exactly, of the parameter's place in the file's
// order, its layer, and the element's place in the file's (out, in) orientation.
double code(int parameter, int layer, int row, int col) {
  return (parameter * 53 + layer * 29 + row * 7 + col * 3) % 256 - 128;
}

std::string header(int magic, int version, const Sizes& s) {
  std::array<std::int32_t, 256> h{};
  h[0] = magic;
  h[1] = version;
  const std::array<int, 6> fields = {s.max_seq, s.vocab, s.layers, s.heads, s.hidden, s.padded_vocab};
  std::copy(fields.begin(), fields.end(), h.begin() + 2);
  return bytes_of(h);
}

// A model file, parameter after parameter as llm.c writes it.
std::string model_file(const Sizes& s, int version) {
  const int c = s.hidden;
  const int l = s.layers;
  const std::vector<std::array<int, 3>> parameters = {{1, s.padded_vocab, c},
                                                      {1, s.max_seq, c},
                                                      {l, 1, c},
                                                      {l, 1, c},
                                                      {l, 3 * c, c},
                                                      {l, 1, 3 * c},
                                                      {l, c, c},
                                                      {l, 1, c},
                                                      {l, 1, c},
                                                      {l, 1, c},
                                                      {l, 4 * c, c},
                                                      {l, 1, 4 * c},
                                                      {l, c, 4 * c},
                                                      {l, 1, c},
                                                      {1, 1, c},
                                                      {1, 1, c}};
  std::vector<double> values;
  for (int p = 0; p < static_cast<int>(parameters.size()); ++p) {
    const auto [layers, rows, cols] = parameters[static_cast<std::size_t>(p)];
    for (int layer = 0; layer < layers; ++layer) {
      for (int row = 0; row < rows; ++row) {
        for (int col = 0; col < cols; ++col) values.push_back(code(p, layer, row, col));
      }
    }
  }
  const auto n = static_cast<std::int64_t>(values.size());
  return header(20240326, version, s) +
         bytes_of(HostTensor::from_doubles(values, {n}, version == 3 ? Dtype::kFp32 : Dtype::kBf16).data);
}

// Expects a tensor of `shape` whose element (i, j) is value(i, j); a vector has i = 0.
void expect_tensor(const LlmcModel& model, const std::string& name, const std::vector<std::int64_t>& shape,
                   const std::function<double(int, int)>& value) {
  ASSERT_TRUE(model.tensors.contains(name)) << name;
  const HostTensor& tensor = model.tensors.at(name);
  ASSERT_EQ(tensor.shape, shape) << name;
  ASSERT_EQ(tensor.dtype, model.config.dtype);
  const std::vector<double> values = tensor.to_doubles();
  const int cols = static_cast<int>(shape.back());
  for (int i = 0; i < static_cast<int>(values.size()); ++i)
    ASSERT_EQ(values[static_cast<std::size_t>(i)], value(i / cols, i % cols)) << name << " " << i;
}

void expect_model(const LlmcModel& model, const Sizes& s) {
  const std::int64_t c = s.hidden;
  const auto straight = [](int p, int layer) { return [=](int i, int j) { return code(p, layer, i, j); }; };
  const auto transposed = [](int p, int layer) { return [=](int i, int j) { return code(p, layer, j, i); }; };
  EXPECT_EQ(model.tensors.size(), static_cast<std::size_t>(4 + 12 * s.layers));
  expect_tensor(model, "transformer.wte.weight", {s.vocab, c}, straight(0, 0));
  expect_tensor(model, "transformer.wpe.weight", {s.max_seq, c}, straight(1, 0));
  expect_tensor(model, "transformer.ln_f.weight", {c}, straight(14, 0));
  expect_tensor(model, "transformer.ln_f.bias", {c}, straight(15, 0));
  for (int layer = 0; layer < s.layers; ++layer) {
    const std::string block = "transformer.h." + std::to_string(layer) + ".";
    expect_tensor(model, block + "ln_1.weight", {c}, straight(2, layer));
    expect_tensor(model, block + "ln_1.bias", {c}, straight(3, layer));
    expect_tensor(model, block + "attn.c_attn.weight", {c, 3 * c}, transposed(4, layer));
    expect_tensor(model, block + "attn.c_attn.bias", {3 * c}, straight(5, layer));
    expect_tensor(model, block + "attn.c_proj.weight", {c, c}, transposed(6, layer));
    expect_tensor(model, block + "attn.c_proj.bias", {c}, straight(7, layer));
    expect_tensor(model, block + "ln_2.weight", {c}, straight(8, layer));
    expect_tensor(model, block + "ln_2.bias", {c}, straight(9, layer));
    expect_tensor(model, block + "mlp.c_fc.weight", {c, 4 * c}, transposed(10, layer));
    expect_tensor(model, block + "mlp.c_fc.bias", {4 * c}, straight(11, layer));
    expect_tensor(model, block + "mlp.c_proj.weight", {4 * c, c}, transposed(12, layer));
    expect_tensor(model, block + "mlp.c_proj.bias", {c}, straight(13, layer));
  }
}

TEST(IoLlmcModel, ReadsBothVersionsInHuggingFaceLayout) {
  const TempDir dir;
  for (const Sizes& s :
       {Sizes{5, 7, 2, 2, 6, 8}, Sizes{1, 1, 1, 1, 1, 1}, Sizes{3, 4, 1, 3, 39, 128}, Sizes{2, 9, 3, 1, 5, 9}}) {
    for (const int version : {3, 5}) {
      const LlmcModel model = read_llmc_model(dir.put("m.bin", model_file(s, version)));
      EXPECT_EQ(model.config.max_seq, s.max_seq);
      EXPECT_EQ(model.config.vocab, s.vocab);
      EXPECT_EQ(model.config.layers, s.layers);
      EXPECT_EQ(model.config.heads, s.heads);
      EXPECT_EQ(model.config.hidden, s.hidden);
      EXPECT_EQ(model.config.padded_vocab, s.padded_vocab);
      EXPECT_EQ(model.config.dtype, version == 3 ? Dtype::kFp32 : Dtype::kBf16);
      expect_model(model, s);
    }
  }
}

TEST(IoLlmcModel, SizesMustBeExact) {
  const TempDir dir;
  const Sizes s{5, 7, 2, 2, 6, 8};
  const std::string whole = model_file(s, 3);
  const std::string size = std::to_string(whole.size());
  const auto message = [&](const std::string& content) {
    return error_of<InputError>([&] { (void)read_llmc_model(dir.put("m.bin", content)); });
  };
  expect_contains(message(whole.substr(0, whole.size() - 1)),
                  "truncated: a model of its header's sizes has " + size + " bytes, the file has ");
  expect_contains(message(whole + "x"), "too long: a model of its header's sizes has " + size);
  expect_contains(message(whole.substr(0, 1024)), "the file has 1024");
  expect_contains(message(whole.substr(0, 1023)), "the header needs 1024 bytes, the file has 1023");
  expect_contains(message(""), "the header needs 1024 bytes");
}

TEST(IoLlmcModel, BadHeadersAreInputErrors) {
  const TempDir dir;
  const Sizes good{5, 7, 2, 2, 6, 8};
  const auto message = [&](const std::string& content) {
    return error_of<InputError>([&] { (void)read_llmc_model(dir.put("m.bin", content)); });
  };
  expect_contains(message(header(20240520, 1, good)), "begins with 20240520 instead of 20240326");
  expect_contains(message(header(20240326, 1, good)), "version 1; versions 3 (fp32) and 5 (bf16)");
  for (const Sizes& bad : {Sizes{0, 7, 2, 2, 6, 8}, Sizes{5, 0, 2, 2, 6, 8}, Sizes{5, 7, 0, 2, 6, 8}, Sizes{5, 7, 2, 0, 6, 8},
                           Sizes{5, 7, 2, 2, 0, 8}, Sizes{5, 7, 2, 4, 6, 8}, Sizes{5, 9, 2, 2, 6, 8}, Sizes{5, 7, -2, 2, 6, 8},
                           Sizes{5, 7, 2, 2, 2000000000, 8}}) {
    expect_contains(message(header(20240326, 3, bad)), "makes no sense");
  }
  expect_contains(message(header(20240326, 3, {2147483647, 2147483647, 100000, 1, 1000000, 2147483647})), "truncated");
  expect_contains(error_of<InputError>([&] { (void)read_llmc_model(dir.path("absent")); }), "No such file");
}

TEST(IoLlmcModel, IsToldFromOtherFiles) {
  const TempDir dir;
  EXPECT_TRUE(is_llmc_model(dir.put("m.bin", model_file({1, 1, 1, 1, 1, 1}, 3))));
  EXPECT_FALSE(is_llmc_model(dir.put("t.bin", header(20240520, 1, {}))));
  EXPECT_FALSE(is_llmc_model(dir.put("s", "abc")));
  EXPECT_FALSE(is_llmc_model(dir.put("e", "")));
}

}  // namespace
}  // namespace ref5d
