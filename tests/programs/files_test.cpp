// --load and --data: the formats of Hugging Face, llm.c and nanoGPT, and files that are not what they should be.
#include <gtest/gtest.h>

#include <array>
#include <filesystem>

#include "common/io/file.h"
#include "common/io/json.h"
#include "common/io/safetensors.h"
#include "common/io/tokens.h"
#include "tests/support/io_testing.h"
#include "tests/support/program_testing.h"

namespace ref5d::testing {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTransformer = "transformer.";

// A golden case's initial weights under Hugging Face's names, and the flags of its model.
struct GoldenWeights {
  explicit GoldenWeights(const std::string& name) {
    const std::string path = std::string(REF5D_SOURCE_DIR "/tests/oracle/golden/") + name + ".safetensors";
    weights = with_prefix(read_tensors(path), "init/");
    const Json c = Json::parse(SafetensorsFile(path).metadata().at("config"));
    flags = name == "gpt2" ? "--model tiny-gpt2" : "--model tiny --kv-heads " + std::to_string(c.at("kv_heads").as_int());
    for (const char* key : {"layers", "hidden", "heads", "ffn", "seq"})
      flags += std::string(" --") + key + " " + std::to_string(c.at(key).as_int());
    vocab = c.at("vocab").as_int();
  }
  NamedTensors weights;
  std::string flags;  // without the vocabulary, the tokens and the weights
  std::int64_t vocab = 0;
};

class Load : public ::testing::Test {
 protected:
  // Flags of a run on tokens within a golden case's small vocabulary.
  [[nodiscard]] std::string run_flags(const GoldenWeights& g) const {
    std::vector<std::int32_t> tokens(400);
    for (std::size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = static_cast<std::int32_t>((i * i + 3 * i) % static_cast<std::size_t>(g.vocab));
    write_nanogpt_tokens(dir_.path("tokens.bin"), tokens);
    return g.flags + " --vocab " + std::to_string(g.vocab) + " --steps 1 --data " + dir_.path("tokens.bin") + " ";
  }
  [[nodiscard]] NamedTensors loaded(const GoldenWeights& g, const std::string& path, const std::string& dtype = "fp64") const {
    const Outcome run =
        run_tiny(run_flags(g) + "--quiet --dtype " + dtype + " --dump " + dir_.path("dump") + " --load " + path);
    EXPECT_EQ(run.exit_status, 0) << run.description();
    return run.exit_status == 0 ? with_prefix(read_tensors(dir_.path("dump")), "init/") : NamedTensors{};
  }
  void expect_refused(const GoldenWeights& g, const std::string& path, const std::vector<std::string>& parts) const {
    expect_one_error(run_tiny(run_flags(g) + "--quiet --load " + path), 2, parts);
  }
  TempDir dir_;
};

TEST_F(Load, HuggingFaceFilesBitwise) {
  for (const char* name : {"llama", "gpt2", "llama_mha_odd_vocab"}) {
    SCOPED_TRACE(name);
    const GoldenWeights g(name);
    write_safetensors(dir_.path("w.safetensors"), g.weights);
    expect_identical(loaded(g, dir_.path("w.safetensors")), g.weights);
  }
}

// Files on the hub have no "transformer.", but masks of attention and a copy of the tied head.
TEST_F(Load, HubNamesOfGpt2) {
  const GoldenWeights g("gpt2");
  NamedTensors hub;
  for (const auto& [name, tensor] : g.weights) hub[name.substr(std::string(kTransformer).size())] = tensor;
  hub["h.0.attn.bias"] = HostTensor::from_doubles(std::vector<double>(16, 1), {1, 1, 4, 4}, Dtype::kFp32);
  hub["lm_head.weight"] = g.weights.at("transformer.wte.weight");
  write_safetensors(dir_.path("hub.safetensors"), hub);
  expect_identical(loaded(g, dir_.path("hub.safetensors")), g.weights);
}

TEST_F(Load, ShardedFolderAndIndex) {
  const GoldenWeights g("llama");
  NamedTensors shards[2];
  Json map = Json::object();
  int i = 0;
  for (const auto& [name, tensor] : g.weights) {
    const int s = i++ % 2;
    shards[s][name] = tensor;
    map.append_member(name, s == 0 ? "model-1.safetensors" : "model-2.safetensors");
  }
  fs::create_directory(dir_.path("hf"));
  write_safetensors(dir_.path("hf/model-1.safetensors"), shards[0]);
  write_safetensors(dir_.path("hf/model-2.safetensors"), shards[1]);
  write_file(dir_.path("hf/model.safetensors.index.json"), Json::object({{"weight_map", map}}).dump());
  expect_identical(loaded(g, dir_.path("hf")), g.weights);
  expect_identical(loaded(g, dir_.path("hf/model.safetensors.index.json")), g.weights);
  fs::remove(dir_.path("hf/model-2.safetensors"));
  expect_refused(g, dir_.path("hf"), {"model-2.safetensors", "missing"});
  fs::create_directory(dir_.path("bare"));
  expect_refused(g, dir_.path("bare"), {dir_.path("bare"), "model.safetensors"});
}

// The order of llm.c's file: embeddings, then each kind of weight with all layers after one another, projections as (out, in).
std::string llmc_file(const GoldenWeights& g, std::int64_t padded_vocab) {
  const auto& w = g.weights;
  const auto seq = w.at("transformer.wpe.weight").shape[0], hidden = w.at("transformer.wte.weight").shape[1];
  std::array<std::int32_t, 256> header{};
  const std::int64_t fields[] = {20240326, 3, seq, g.vocab, 2, 4, hidden, padded_vocab};
  for (std::size_t i = 0; i < std::size(fields); ++i) header[i] = static_cast<std::int32_t>(fields[i]);
  std::string content = bytes_of(header);
  auto put = [&](const std::string& name, bool transposed) {
    const HostTensor& t = w.at(name);
    const std::vector<double> values = t.to_doubles();
    const auto rows = static_cast<std::size_t>(t.shape[0]),
               columns = t.shape.size() > 1 ? static_cast<std::size_t>(t.shape[1]) : 1;
    std::vector<float> out;
    for (std::size_t i = 0; i < values.size(); ++i)
      out.push_back(static_cast<float>(values[transposed ? i % rows * columns + i / rows : i]));
    content += bytes_of(out);
  };
  put("transformer.wte.weight", false);
  content += bytes_of(std::vector<float>(static_cast<std::size_t>((padded_vocab - g.vocab) * hidden), 9.0f));
  put("transformer.wpe.weight", false);
  for (const char* part :
       {"ln_1.weight", "ln_1.bias", "attn.c_attn.weight", "attn.c_attn.bias", "attn.c_proj.weight", "attn.c_proj.bias",
        "ln_2.weight", "ln_2.bias", "mlp.c_fc.weight", "mlp.c_fc.bias", "mlp.c_proj.weight", "mlp.c_proj.bias"}) {
    const std::string name = part;
    for (const char* layer : {"0", "1"})
      put("transformer.h." + std::string(layer) + "." + name,
          name.find(".c_") != std::string::npos && name.ends_with("weight"));
  }
  put("transformer.ln_f.weight", false);
  put("transformer.ln_f.bias", false);
  return content;
}

TEST_F(Load, LlmcModel) {
  const GoldenWeights g("gpt2");
  NamedTensors rounded;
  for (const auto& [name, t] : g.weights) rounded[name] = HostTensor::from_doubles(t.to_doubles(), t.shape, Dtype::kFp32);
  const std::string content = llmc_file(g, 64);
  expect_identical(loaded(g, dir_.put("gpt2.bin", content), "fp32"), rounded);
  expect_refused(g, dir_.put("cut.bin", content.substr(0, content.size() - 1)), {"cut.bin", "truncated"});
  GoldenWeights llama("llama");
  expect_refused(llama, dir_.path("gpt2.bin"), {"gpt2.bin", "model.embed_tokens.weight"});
}

TEST_F(Load, WeightsOfAnotherModel) {
  GoldenWeights g("llama");
  const std::string path = dir_.path("w.safetensors");
  NamedTensors weights = g.weights;
  weights.at("model.layers.1.mlp.up_proj.weight") =
      HostTensor::from_doubles(std::vector<double>(48 * 31), {48, 31}, Dtype::kFp64);
  write_safetensors(path, weights);
  expect_refused(g, path, {"model.layers.1.mlp.up_proj.weight", "[48, 31]", "[48, 32]"});

  weights = g.weights;
  weights.erase("model.layers.1.mlp.up_proj.weight");
  write_safetensors(path, weights);
  expect_refused(g, path, {path, "model.layers.1.mlp.up_proj.weight"});

  for (const char* extra : {"model.layers.2.input_layernorm.weight", "model.layers.0.self_attn.q_norm.weight",
                            "model.layers.0.self_attn.q_proj.bias"}) {
    weights = g.weights;
    weights[extra] = HostTensor::from_doubles({1, 1}, {2}, Dtype::kFp64);
    write_safetensors(path, weights);
    expect_refused(g, path, {path, extra, "no place"});
  }
}

TEST_F(Load, FilesThatAreNoWeights) {
  const GoldenWeights g("llama");
  write_safetensors(dir_.path("w.safetensors"), g.weights);
  const std::string whole = read_file(dir_.path("w.safetensors"));
  for (const std::size_t kept : {std::size_t{0}, std::size_t{7}, std::size_t{100}, whole.size() / 2, whole.size() - 1})
    expect_refused(g, dir_.put("cut.safetensors", whole.substr(0, kept)), {dir_.path("cut.safetensors")});
  expect_refused(g, dir_.put("text", "The weights of this model are long gone."), {dir_.path("text")});
  expect_refused(g, dir_.put("zeros", std::string(5000, '\0')), {dir_.path("zeros")});
  expect_refused(g, dir_.path("nowhere"), {dir_.path("nowhere")});
  expect_refused(g, "/dev/null", {"/dev/null"});
}

class Data : public ::testing::Test {
 protected:
  [[nodiscard]] std::vector<std::int32_t> tokens(std::int32_t below) const {
    std::vector<std::int32_t> out(300);
    for (std::size_t i = 0; i < out.size(); ++i)
      out[i] = static_cast<std::int32_t>((i * i + 5 * i) % static_cast<std::size_t>(below));
    out[7] = below - 1;
    return out;
  }
  void expect_trains(const std::string& path, const std::string& flags) const {
    const Outcome run = run_tiny("--no-verify --data " + path + " " + flags);
    EXPECT_EQ(run.exit_status, 0) << run.description();
    expect_contains(run.out, path);
    // Tokens in a dump come from the file.
    expect_contains(run.out, "step 2/2");
  }
  void expect_refused(const std::string& path, const std::vector<std::string>& parts, const std::string& flags = "") const {
    std::vector<std::string> all{path};
    all.insert(all.end(), parts.begin(), parts.end());
    expect_one_error(run_tiny("--quiet --data " + path + " " + flags), 2, all);
  }
  TempDir dir_;
};

TEST_F(Data, EveryFormatTrains) {
  expect_trains(dir_.put("poem.txt", std::string(20, 'a') + "\n\n" + std::string(200, 'b')), "");
  expect_trains(dir_.path("poem.txt"), "--documents pad");
  write_llmc_tokens(dir_.path("gpt2.bin"), tokens(1000), false);
  expect_trains(dir_.path("gpt2.bin"), "--vocab 1000");
  write_llmc_tokens(dir_.path("llama3.bin"), tokens(70000), true);
  expect_trains(dir_.path("llama3.bin"), "--vocab 70000 --steps 2");
  write_nanogpt_tokens(dir_.path("nano.bin"), tokens(500));
  expect_trains(dir_.path("nano.bin"), "--vocab 500 --documents pack");
}

// The rows of the first step are stretches of the file, each label its successor.
TEST_F(Data, TokensAreTheFiles) {
  const std::vector<std::int32_t> file = tokens(500);
  write_nanogpt_tokens(dir_.path("nano.bin"), file);
  ASSERT_EQ(
      run_tiny("--quiet --no-verify --vocab 500 --data " + dir_.path("nano.bin") + " --dump " + dir_.path("d")).exit_status, 0);
  const NamedTensors dump = read_tensors(dir_.path("d"));
  const std::vector<double> seen = dump.at("tokens").to_doubles(), labels = dump.at("labels").to_doubles();
  for (std::size_t row = 0; row < seen.size() / 16; ++row) {
    bool found = false;
    for (std::size_t at = 0; at + 16 < file.size() && !found; at += 16) {
      found = true;
      for (std::size_t t = 0; t < 16; ++t)
        found = found && seen[row * 16 + t] == file[at + t] && labels[row * 16 + t] == file[at + t + 1];
    }
    EXPECT_TRUE(found) << "row " << row;
  }
}

TEST_F(Data, TokensBeyondTheVocabulary) {
  write_nanogpt_tokens(dir_.path("nano.bin"), tokens(500));
  expect_refused(dir_.path("nano.bin"), {"vocabulary of 256", "--vocab 500"});
  expect_refused(dir_.path("nano.bin"), {"token 499 at position 7"}, "--vocab 499");
  write_llmc_tokens(dir_.path("llama3.bin"), tokens(70000), true);
  expect_refused(dir_.path("llama3.bin"), {"--vocab 70000"}, "--vocab 50257");
  expect_refused(dir_.put("utf8.txt", std::string(100, '\xc3')), {"--vocab 196"}, "--vocab 128");
}

TEST_F(Data, FilesThatAreNoTokens) {
  write_llmc_tokens(dir_.path("whole.bin"), tokens(200), false);
  const std::string whole = read_file(dir_.path("whole.bin"));
  expect_refused(dir_.put("cut.bin", whole.substr(0, whole.size() - 2)), {"truncated"});
  expect_refused(dir_.put("header.bin", whole.substr(0, 600)), {"truncated"});
  expect_refused(dir_.put("long.bin", whole + "xx"), {"too long"});
  std::string version = whole;
  version[4] = 9;
  expect_refused(dir_.put("version.bin", version), {"version 9"});
  expect_refused(dir_.put("odd.bin", "abcde"), {"odd number"});
  expect_refused(dir_.put("empty.txt", ""), {"empty"});
  expect_refused(dir_.put("short.txt", "too short"), {"too few"});
  expect_refused(dir_.path("missing.txt"), {"No such file"});
  expect_refused(dir_.path(), {"Is a directory"});
  expect_refused("/dev/zero", {"regular file"});
}

}  // namespace
}  // namespace ref5d::testing
