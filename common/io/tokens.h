// Token files: text whose bytes are tokens, and the binary formats of llm.c and nanoGPT.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace ref5d {

struct TokenStream {
  std::vector<std::int32_t> tokens;
  std::string kind;  // "text", "llm.c", "llm.c-llama3" or "nanogpt"
};

// Reads a token file. What it is follows from its content and name:
//   llm.c          begins with the int32 20240520: header of 256 int32 ([1] version 1, [2] count n), then n uint16
//   llm.c-llama3   begins with the int32 20240801: the same with version 7 and uint32
//   nanogpt        any other file called *.bin: uint16 without a header
//   text           every other file: its bytes are the tokens, 0 to 255
// (A nanoGPT file cannot be taken for an llm.c one: its first token would be 55432 or 55713, beyond GPT-2's vocabulary.)
// Throws InputError if the file is missing, empty, of another version, or not exactly as long as its header says.
[[nodiscard]] TokenStream load_tokens(const std::string& path);

// Throws InputError that names the first token outside [0, vocab) with its position, and the vocabulary that would do.
void check_tokens(std::span<const std::int32_t> tokens, std::int64_t vocab, const std::string& path);

// Writes an llm.c token file: version 1 with uint16, or if `wide` the Llama-3 version with uint32.
// Throws InputError for a token that does not fit.
void write_llmc_tokens(const std::string& path, std::span<const std::int32_t> tokens, bool wide = false);

// Writes a nanoGPT token file (uint16). Throws InputError for a token that does not fit.
void write_nanogpt_tokens(const std::string& path, std::span<const std::int32_t> tokens);

}  // namespace ref5d
