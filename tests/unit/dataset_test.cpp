// Documents in token files, by the conventions of the programs that write them.
#include "common/train/dataset.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/io_testing.h"

namespace ref5d::testing {
namespace {

using Tokens = std::vector<std::int32_t>;

// The documents of a file, in the order of the stream. Every document fits a row.
std::vector<Tokens> documents_of(const std::string& path, std::int64_t vocab) {
  DatasetOptions options;
  options.path = path;
  options.documents = "pad";
  options.seq = 8;
  options.vocab = vocab;
  const Dataset data(options);
  std::vector<Tokens> documents;
  for (std::int64_t i = 0; i < data.rows(); ++i) {
    const Row row = data.row(i);
    documents.emplace_back(row.tokens.begin(), row.tokens.begin() + static_cast<std::ptrdiff_t>(row.useful));
  }
  return documents;
}

// llm.c puts a token before each document, Llama 3's begin-of-text or GPT-2's end-of-text; nanoGPT puts GPT-2's after each. A
// file may begin within a document, as the second of several files does.
TEST(DatasetDocuments, AreSeparatedAsTheirWriterDoes) {
  const TempDir dir;
  constexpr std::int32_t kGpt2 = 50256, kLlama3 = 128000;
  write_llmc_tokens(dir.path("gpt2.bin"), Tokens{7, kGpt2, 1, 2, kGpt2, 3, kGpt2});
  EXPECT_EQ(documents_of(dir.path("gpt2.bin"), 50257), (std::vector<Tokens>{{7}, {kGpt2, 1, 2}, {kGpt2, 3}, {kGpt2}}));

  write_llmc_tokens(dir.path("llama3.bin"), Tokens{kLlama3, 1, kGpt2, 2, kLlama3, kLlama3, 3}, true);
  EXPECT_EQ(documents_of(dir.path("llama3.bin"), 128256),
            (std::vector<Tokens>{{kLlama3, 1, kGpt2, 2}, {kLlama3}, {kLlama3, 3}}))
      << "50256 is a word of Llama 3's";

  write_nanogpt_tokens(dir.path("nano.bin"), Tokens{1, 2, kGpt2, kGpt2, 3});
  EXPECT_EQ(documents_of(dir.path("nano.bin"), 50257), (std::vector<Tokens>{{1, 2, kGpt2}, {kGpt2}, {3}}));

  dir.put("poem.txt", "a\n\nb");
  EXPECT_EQ(documents_of(dir.path("poem.txt"), 256), (std::vector<Tokens>{{'a', '\n', '\n'}, {'b'}}));
}

}  // namespace
}  // namespace ref5d::testing
