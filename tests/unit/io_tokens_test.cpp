#include <gtest/gtest.h>

#include <array>
#include <numeric>

#include "common/device/error.h"
#include "common/io/file.h"
#include "common/io/tokens.h"
#include "tests/support/io_testing.h"

namespace ref5d {
namespace {

using testing::bytes_of;
using testing::error_of;
using testing::expect_contains;
using testing::TempDir;
using Tokens = std::vector<std::int32_t>;

std::string llmc_header(std::int32_t magic, std::int32_t version, std::int32_t count) {
  std::array<std::int32_t, 256> header{};
  header[0] = magic;
  header[1] = version;
  header[2] = count;
  return bytes_of(header);
}

Tokens some_tokens(std::size_t n, std::int32_t limit) {
  Tokens tokens(n);
  for (std::size_t i = 0; i < n; ++i)
    tokens[i] = static_cast<std::int32_t>((i * 2654435761u) % static_cast<std::uint32_t>(limit));
  return tokens;
}

TEST(IoTokens, TextIsBytes) {
  const TempDir dir;
  std::string all;
  for (int c = 0; c < 256; ++c) all += static_cast<char>(c);
  const TokenStream stream = load_tokens(dir.put("a.txt", all));
  Tokens wanted(256);
  std::iota(wanted.begin(), wanted.end(), 0);
  EXPECT_EQ(stream.tokens, wanted);
  EXPECT_EQ(stream.kind, "text");
  EXPECT_EQ(load_tokens(dir.put("b", "x")).tokens, Tokens{'x'});
}

TEST(IoTokens, EveryFormatRoundTrips) {
  const TempDir dir;
  for (const std::size_t n : {1u, 2u, 3u, 1000u, 262144u, 262145u, 600001u}) {
    const Tokens narrow = some_tokens(n, 50257);
    write_llmc_tokens(dir.path("a.bin"), narrow);
    EXPECT_EQ(std::filesystem::file_size(dir.path("a.bin")), 1024 + 2 * n);
    EXPECT_EQ(load_tokens(dir.path("a.bin")).tokens, narrow);
    EXPECT_EQ(load_tokens(dir.path("a.bin")).kind, "llm.c");
    write_nanogpt_tokens(dir.path("b.bin"), narrow);
    EXPECT_EQ(std::filesystem::file_size(dir.path("b.bin")), 2 * n);
    EXPECT_EQ(load_tokens(dir.path("b.bin")).tokens, narrow);
    EXPECT_EQ(load_tokens(dir.path("b.bin")).kind, "nanogpt");
    const Tokens wide = some_tokens(n, 128256);
    write_llmc_tokens(dir.path("c.bin"), wide, true);
    EXPECT_EQ(std::filesystem::file_size(dir.path("c.bin")), 1024 + 4 * n);
    EXPECT_EQ(load_tokens(dir.path("c.bin")).tokens, wide);
    EXPECT_EQ(load_tokens(dir.path("c.bin")).kind, "llm.c-llama3");
  }
}

// The files byte by byte as the formats say, not as the writers do.
TEST(IoTokens, FormatsAsSpecified) {
  const TempDir dir;
  const std::vector<std::uint16_t> narrow = {1, 50256, 65535};
  const std::vector<std::uint32_t> wide = {128000, 7};
  EXPECT_EQ(load_tokens(dir.put("a.bin", llmc_header(20240520, 1, 3) + bytes_of(narrow))).tokens, (Tokens{1, 50256, 65535}));
  EXPECT_EQ(load_tokens(dir.put("b.bin", llmc_header(20240801, 7, 2) + bytes_of(wide))).tokens, (Tokens{128000, 7}));
  EXPECT_EQ(load_tokens(dir.put("c.bin", bytes_of(narrow))).tokens, (Tokens{1, 50256, 65535}));
  write_llmc_tokens(dir.path("d.bin"), Tokens{1, 50256, 65535});
  EXPECT_EQ(read_file(dir.path("d.bin")), read_file(dir.path("a.bin")));
  write_llmc_tokens(dir.path("e.bin"), Tokens{128000, 7}, true);
  EXPECT_EQ(read_file(dir.path("e.bin")), read_file(dir.path("b.bin")));
}

TEST(IoTokens, BadFilesAreInputErrors) {
  const TempDir dir;
  const auto message = [](const std::string& path) { return error_of<InputError>([&] { (void)load_tokens(path); }); };
  expect_contains(message(dir.path("absent.bin")), "No such file");
  expect_contains(message(dir.path()), "Is a directory");
  expect_contains(message(dir.put("a.txt", "")), "is empty");
  expect_contains(message(dir.put("a.bin", "")), "is empty");
  expect_contains(message(dir.put("a.bin", "abc")), "3 bytes, an odd number");
  const std::string data(10, 'x');
  expect_contains(message(dir.put("a.bin", llmc_header(20240520, 1, 6) + data)),
                  "truncated: 6 tokens need 1036 bytes, the file has 1034");
  expect_contains(message(dir.put("a.bin", llmc_header(20240520, 1, 4) + data)),
                  "too long: 4 tokens need 1032 bytes, the file has 1034");
  expect_contains(message(dir.put("a.bin", llmc_header(20240801, 7, 3) + data)), "truncated: 3 tokens need 1036 bytes");
  expect_contains(message(dir.put("a.bin", llmc_header(20240520, 2, 5) + data)), "version 2; version 1");
  expect_contains(message(dir.put("a.bin", llmc_header(20240801, 1, 5) + data)), "version 1; version 7");
  expect_contains(message(dir.put("a.bin", llmc_header(20240520, 1, 0))), "no tokens");
  expect_contains(message(dir.put("a.bin", llmc_header(20240520, 1, -3) + data)), "counts -3");
  expect_contains(message(dir.put("a.bin", llmc_header(20240520, 1, 5).substr(0, 100))),
                  "header of 1024 bytes, this file has 100");
  const std::vector<std::uint32_t> huge = {1, 4000000000u};
  expect_contains(message(dir.put("a.bin", llmc_header(20240801, 7, 2) + bytes_of(huge))), "token 4000000000 at position 1");
}

TEST(IoTokens, WritersRefuseWhatDoesNotFit) {
  const TempDir dir;
  expect_contains(error_of<InputError>([&] {
                    write_llmc_tokens(dir.path("a.bin"), Tokens{1, 65536});
                  }),
                  "token 65536 at position 1");
  expect_contains(error_of<InputError>([&] { write_llmc_tokens(dir.path("a.bin"), Tokens{-1}, true); }),
                  "token -1 at position 0");
  expect_contains(error_of<InputError>([&] { write_nanogpt_tokens(dir.path("a.bin"), Tokens{70000}); }), "between 0 and 65535");
  EXPECT_EQ(dir.entries(), 0);
}

TEST(IoTokens, CheckNamesTheFirstBadToken) {
  Tokens tokens(20, 255);
  EXPECT_NO_THROW(check_tokens(tokens, 256, "FILE"));
  expect_contains(error_of<InputError>([&] { check_tokens(tokens, 255, "FILE"); }), "token 255 at position 0");
  tokens[17] = 300;
  EXPECT_EQ(error_of<InputError>([&] { check_tokens(tokens, 256, "FILE"); }),
            "token 300 at position 17 of FILE is beyond the vocabulary of 256; use --vocab 301 or more");
  tokens[19] = 400;  // the advice must do for the whole file
  expect_contains(error_of<InputError>([&] { check_tokens(tokens, 256, "FILE"); }), "token 300 at position 17");
  expect_contains(error_of<InputError>([&] { check_tokens(tokens, 256, "FILE"); }), "--vocab 401 or more");
  EXPECT_NO_THROW(check_tokens(tokens, 401, "FILE"));
  tokens[3] = -1;
  expect_contains(error_of<InputError>([&] { check_tokens(tokens, 256, "FILE"); }),
                  "token -1 at position 3 of FILE is negative");
}

}  // namespace
}  // namespace ref5d
