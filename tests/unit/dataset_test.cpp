// Documents in token files, by the conventions of the programs that write them.
#include "common/train/dataset.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "common/device/error.h"
#include "tests/support/io_testing.h"

namespace ref5d::testing {
namespace {

using Tokens = std::vector<std::int32_t>;

// The documents of a file, in the order of the stream. Every document fits a row.
std::vector<Tokens> documents_of(const std::string& path, std::int64_t vocab) {
  DatasetOptions options;
  options.path = path;
  options.documents = "pad";
  options.seq = 12;
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

TEST(DatasetDocuments, LinesMayEndInCarriageReturns) {
  const TempDir dir;
  dir.put("dos.txt", "a\r\nb\r\n\r\nc");
  EXPECT_EQ(documents_of(dir.path("dos.txt"), 256),
            (std::vector<Tokens>{{'a', '\r', '\n', 'b', '\r', '\n', '\r', '\n'}, {'c'}}));
  for (const char* lines : {"a\n\nb", "a\n\n\nb", "a\n\n\n\nb", "a\n\nb\n\n\nc\n"}) {
    const auto with = [&](const std::string& end) {
      std::string text;
      for (const char* c = lines; *c != 0; ++c) text += *c == '\n' ? end : std::string(1, *c);
      dir.put("lines", text);
      return documents_of(dir.path("lines"), 256);
    };
    std::vector<Tokens> dos = with("\r\n");
    for (Tokens& t : dos) std::erase(t, '\r');
    EXPECT_EQ(dos, with("\n")) << lines;
  }
}

DatasetOptions stream_of(const TempDir& dir, std::int64_t length, std::int64_t seq) {
  std::string text;
  for (std::int64_t i = 0; i < length; ++i) text += static_cast<char>('a' + i % 26);
  dir.put("text", text);
  DatasetOptions options;
  options.path = dir.path("text");
  options.seq = seq;
  return options;
}

TEST(DatasetStream, NoRowIsLost) {
  const TempDir dir;
  for (std::int64_t length : {9, 16, 17, 18, 24, 25}) {  // rows of 8 and one label more
    const Dataset data(stream_of(dir, length, 8));
    ASSERT_EQ(data.rows(), (length - 1) / 8) << length;
    const Row last = data.row(data.rows() - 1);
    EXPECT_EQ(last.labels.back(), 'a' + data.rows() * 8 % 26);
  }
}

// Every epoch has every row once, each in an order of its own that the seed decides, all 64 bits of it.
TEST(DatasetStream, EveryEpochIsAnotherPermutation) {
  const TempDir dir;
  DatasetOptions options = stream_of(dir, 20 * 8 + 1, 8);
  const auto epoch = [](const Dataset& data, std::int64_t e) {
    std::vector<Tokens> rows;
    for (std::int64_t i = 0; i < 20; ++i) rows.push_back(data.sample(e * 20 + i).tokens);
    return rows;
  };
  const Dataset data(options);
  const std::vector<Tokens> first = epoch(data, 0), second = epoch(data, 1);
  EXPECT_NE(first, second);
  EXPECT_EQ(epoch(data, 0), first) << "going back";
  std::vector<Tokens> sorted_first = first, sorted_second = second;
  std::sort(sorted_first.begin(), sorted_first.end());
  std::sort(sorted_second.begin(), sorted_second.end());
  EXPECT_EQ(sorted_first, sorted_second);
  options.seed += std::uint64_t{1} << 32;
  EXPECT_NE(epoch(Dataset(options), 0), first);
}

TEST(DatasetFingerprint, TellsDataApart) {
  const TempDir dir;
  const DatasetOptions options = stream_of(dir, 100, 8);
  const std::string one = Dataset(options).fingerprint();
  EXPECT_EQ(one.size(), 16u);
  EXPECT_EQ(Dataset(options).fingerprint(), one);
  DatasetOptions other = options;
  other.seq = 9;
  EXPECT_NE(Dataset(other).fingerprint(), one);
  other = options;
  other.documents = "pack";
  EXPECT_NE(Dataset(other).fingerprint(), one);
  EXPECT_NE(Dataset(stream_of(dir, 99, 8)).fingerprint(), one);
}

TEST(DatasetErrors, DataWithoutALabel) {
  const TempDir dir;
  DatasetOptions options;
  options.documents = "pad";
  options.path = dir.path("x");
  dir.put("x", "x");
  EXPECT_THROW(Dataset{options}, InputError);
  dir.put("x", "x\n");
  EXPECT_NO_THROW(Dataset{options});
}

}  // namespace
}  // namespace ref5d::testing
