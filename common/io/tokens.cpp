#include "common/io/tokens.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <limits>

#include "common/device/error.h"
#include "common/io/file.h"

namespace ref5d {
namespace {

using Header = std::array<std::int32_t, 256>;
constexpr std::int64_t kHeaderBytes = sizeof(Header);
constexpr std::size_t kChunk = std::size_t{1} << 18;  // tokens converted at a time

struct LlmcFormat {
  std::int32_t magic, version;
  std::int64_t token_bytes;
  const char* kind;
};
constexpr LlmcFormat kNarrow{20240520, 1, 2, "llm.c"};
constexpr LlmcFormat kWide{20240801, 7, 4, "llm.c-llama3"};

// Widens n tokens of type T, which begin at `offset`, to int32.
template <typename T>
std::vector<std::int32_t> read_as(const InputFile& file, std::int64_t offset, std::int64_t n) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(n));
  std::vector<T> chunk(std::min(tokens.size(), kChunk));
  for (std::size_t done = 0; done < tokens.size();) {
    const std::size_t count = std::min(chunk.size(), tokens.size() - done);
    file.read_at(offset + static_cast<std::int64_t>(done * sizeof(T)), std::as_writable_bytes(std::span(chunk).first(count)));
    for (std::size_t i = 0; i < count; ++i) {
      if (!std::in_range<std::int32_t>(chunk[i])) {
        throw InputError(fmt::format("token {} at position {} of {} does not fit int32", chunk[i], done + i, file.path()));
      }
      tokens[done + i] = static_cast<std::int32_t>(chunk[i]);
    }
    done += count;
  }
  return tokens;
}

TokenStream read_llmc(const InputFile& file, const LlmcFormat& format) {
  if (file.size() < kHeaderBytes) {
    throw InputError(fmt::format("{} is truncated: an llm.c token file has a header of {} bytes, this file has {}", file.path(),
                                 kHeaderBytes, file.size()));
  }
  Header header{};
  file.read_at(0, std::as_writable_bytes(std::span(header)));
  if (header[1] != format.version) {
    throw InputError(fmt::format("{} is an llm.c token file of version {}; version {} is read for its magic number {}",
                                 file.path(), header[1], format.version, format.magic));
  }
  const std::int64_t n = header[2];
  if (n <= 0) throw InputError(fmt::format("{} holds no tokens: its header counts {}; at least 1 is needed", file.path(), n));
  const std::int64_t expected = kHeaderBytes + n * format.token_bytes;
  if (file.size() != expected) {
    throw InputError(fmt::format("{} is {}: {} tokens need {} bytes, the file has {}", file.path(),
                                 file.size() < expected ? "truncated" : "too long", n, expected, file.size()));
  }
  return {
      format.token_bytes == 2 ? read_as<std::uint16_t>(file, kHeaderBytes, n) : read_as<std::uint32_t>(file, kHeaderBytes, n),
      format.kind};
}

// Writes the tokens as T; InputError for one that does not fit.
template <typename T>
void write_as(AtomicFile& file, std::span<const std::int32_t> tokens, const std::string& path) {
  std::vector<T> chunk;
  chunk.reserve(std::min(tokens.size(), kChunk));
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (!std::in_range<T>(tokens[i])) {
      throw InputError(fmt::format("cannot write {}: token {} at position {} is not between 0 and {}", path, tokens[i], i,
                                   std::uint64_t{std::numeric_limits<T>::max()}));
    }
    chunk.push_back(static_cast<T>(tokens[i]));
    if (chunk.size() == kChunk || i + 1 == tokens.size()) {
      file.write(std::as_bytes(std::span(chunk)));
      chunk.clear();
    }
  }
}

}  // namespace

TokenStream load_tokens(const std::string& path) {
  const InputFile file(path);
  if (file.size() == 0) throw InputError(fmt::format("{} is empty; it must hold at least one token", path));
  if (file.size() >= 4) {
    std::int32_t magic = 0;
    file.read_at(0, std::as_writable_bytes(std::span(&magic, 1)));
    if (magic == kNarrow.magic) return read_llmc(file, kNarrow);
    if (magic == kWide.magic) return read_llmc(file, kWide);
  }
  if (!path.ends_with(".bin")) return {read_as<std::uint8_t>(file, 0, file.size()), "text"};
  if (file.size() % 2 != 0) {
    throw InputError(
        fmt::format("{} has {} bytes, an odd number; a nanoGPT token file holds two bytes per token (rename it if it is text)",
                    path, file.size()));
  }
  return {read_as<std::uint16_t>(file, 0, file.size() / 2), "nanogpt"};
}

void check_tokens(std::span<const std::int32_t> tokens, std::int64_t vocab, const std::string& path) {
  const auto bad = std::find_if(tokens.begin(), tokens.end(), [&](std::int32_t t) { return t < 0 || t >= vocab; });
  if (bad == tokens.end()) return;
  const auto position = bad - tokens.begin();
  if (*bad < 0)
    throw InputError(
        fmt::format("token {} at position {} of {} is negative; tokens are 0 to {}", *bad, position, path, vocab - 1));
  // The largest token decides, so that the advice holds for the whole file.
  const std::int64_t enough = std::int64_t{*std::max_element(tokens.begin(), tokens.end())} + 1;
  throw InputError(fmt::format("token {} at position {} of {} is beyond the vocabulary of {}; use --vocab {} or more", *bad,
                               position, path, vocab, enough));
}

void write_llmc_tokens(const std::string& path, std::span<const std::int32_t> tokens, bool wide) {
  const LlmcFormat& format = wide ? kWide : kNarrow;
  if (!std::in_range<std::int32_t>(tokens.size())) {
    throw InputError(
        fmt::format("cannot write {}: {} tokens are more than the format's 2147483647; split them over several files", path,
                    tokens.size()));
  }
  Header header{};
  header[0] = format.magic;
  header[1] = format.version;
  header[2] = static_cast<std::int32_t>(tokens.size());
  AtomicFile file(path);
  file.write(std::as_bytes(std::span(header)));
  wide ? write_as<std::uint32_t>(file, tokens, path) : write_as<std::uint16_t>(file, tokens, path);
  file.commit();
}

void write_nanogpt_tokens(const std::string& path, std::span<const std::int32_t> tokens) {
  AtomicFile file(path);
  write_as<std::uint16_t>(file, tokens, path);
  file.commit();
}

}  // namespace ref5d
