#include "common/io/llmc_model.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <vector>

#include "common/device/error.h"
#include "common/io/file.h"

namespace ref5d {
namespace {

using Header = std::array<std::int32_t, 256>;
constexpr std::int64_t kHeaderBytes = sizeof(Header);
constexpr std::int32_t kMagic = 20240326;
constexpr std::int32_t kVersionFp32 = 3;
constexpr std::int32_t kVersionBf16 = 5;

// One parameter of the file, in the file's order and shapes.
struct Part {
  std::string name;  // after "transformer." or after "transformer.h.I."
  bool per_layer;
  std::int64_t rows, cols;  // (out, in) of a projection; rows = 1 for a vector
  bool is_projection;       // stored (out, in), wanted [in, out]
};

std::vector<Part> parts_of(const LlmcModelConfig& c) {
  const std::int64_t h = c.hidden;
  return {{"wte.weight", false, c.padded_vocab, h, false},
          {"wpe.weight", false, c.max_seq, h, false},
          {"ln_1.weight", true, 1, h, false},
          {"ln_1.bias", true, 1, h, false},
          {"attn.c_attn.weight", true, 3 * h, h, true},
          {"attn.c_attn.bias", true, 1, 3 * h, false},
          {"attn.c_proj.weight", true, h, h, true},
          {"attn.c_proj.bias", true, 1, h, false},
          {"ln_2.weight", true, 1, h, false},
          {"ln_2.bias", true, 1, h, false},
          {"mlp.c_fc.weight", true, 4 * h, h, true},
          {"mlp.c_fc.bias", true, 1, 4 * h, false},
          {"mlp.c_proj.weight", true, h, 4 * h, true},
          {"mlp.c_proj.bias", true, 1, h, false},
          {"ln_f.weight", false, 1, h, false},
          {"ln_f.bias", false, 1, h, false}};
}

LlmcModelConfig parse_header(const InputFile& file) {
  Header header{};
  if (file.size() < kHeaderBytes) {
    throw InputError(fmt::format("{} is too short for an llm.c model: the header needs {} bytes, the file has {}", file.path(),
                                 kHeaderBytes, file.size()));
  }
  file.read_at(0, std::as_writable_bytes(std::span(header)));
  if (header[0] != kMagic) {
    throw InputError(fmt::format("{} is not an llm.c model: it begins with {} instead of {}", file.path(), header[0], kMagic));
  }
  if (header[1] != kVersionFp32 && header[1] != kVersionBf16) {
    throw InputError(
        fmt::format("{} is an llm.c model of version {}; versions 3 (fp32) and 5 (bf16) are read", file.path(), header[1]));
  }
  const LlmcModelConfig c{header[2],
                          header[3],
                          header[4],
                          header[5],
                          header[6],
                          header[7],
                          header[1] == kVersionFp32 ? Dtype::kFp32 : Dtype::kBf16};
  // The bounds keep the sizes below within 64 bits.
  constexpr std::int64_t kMaxHidden = 1'000'000;
  constexpr std::int64_t kMaxLayers = 100'000;
  if (c.max_seq < 1 || c.vocab < 1 || c.layers < 1 || c.layers > kMaxLayers || c.heads < 1 || c.hidden < 1 ||
      c.hidden > kMaxHidden || c.hidden % c.heads != 0 || c.padded_vocab < c.vocab) {
    throw InputError(
        fmt::format("{} has a header that makes no sense: maxT {}, V {}, L {}, NH {}, C {}, Vp {}; all must be positive, NH "
                    "divide C, and Vp be at least V",
                    file.path(), c.max_seq, c.vocab, c.layers, c.heads, c.hidden, c.padded_vocab));
  }
  return c;
}

// [rows, cols] to [cols, rows], elements of `size` bytes.
std::vector<std::byte> transpose(const std::vector<std::byte>& in, std::size_t rows, std::size_t cols, std::size_t size) {
  constexpr std::size_t kTile = 32;  // both sides of a tile stay in cache
  std::vector<std::byte> out(in.size());
  for (std::size_t r0 = 0; r0 < rows; r0 += kTile) {
    for (std::size_t c0 = 0; c0 < cols; c0 += kTile) {
      for (std::size_t r = r0; r < std::min(rows, r0 + kTile); ++r) {
        for (std::size_t c = c0; c < std::min(cols, c0 + kTile); ++c) {
          std::memcpy(out.data() + (c * rows + r) * size, in.data() + (r * cols + c) * size, size);
        }
      }
    }
  }
  return out;
}

HostTensor read_part(const InputFile& file, std::int64_t offset, const Part& part, Dtype dtype) {
  HostTensor tensor{
      dtype, {part.cols}, std::vector<std::byte>(static_cast<std::size_t>(part.rows * part.cols) * dtype_size(dtype))};
  file.read_at(offset, tensor.data);
  if (part.is_projection) {
    tensor.data =
        transpose(tensor.data, static_cast<std::size_t>(part.rows), static_cast<std::size_t>(part.cols), dtype_size(dtype));
    tensor.shape = {part.cols, part.rows};
  } else if (part.rows > 1 || part.name == "wte.weight" || part.name == "wpe.weight") {
    tensor.shape = {part.rows, part.cols};
  }
  return tensor;
}

}  // namespace

bool is_llmc_model(const std::string& path) {
  const InputFile file(path);
  std::int32_t magic = 0;
  if (file.size() < static_cast<std::int64_t>(sizeof magic)) return false;
  file.read_at(0, std::as_writable_bytes(std::span(&magic, 1)));
  return magic == kMagic;
}

LlmcModel read_llmc_model(const std::string& path) {
  const InputFile file(path);
  LlmcModel model{parse_header(file), {}};
  const LlmcModelConfig& c = model.config;
  const auto element = static_cast<std::int64_t>(dtype_size(c.dtype));
  const std::vector<Part> parts = parts_of(c);
  std::int64_t expected = kHeaderBytes;
  for (const Part& part : parts) expected += (part.per_layer ? c.layers : 1) * part.rows * part.cols * element;
  if (file.size() != expected) {
    throw InputError(fmt::format("{} is {}: a model of its header's sizes has {} bytes, the file has {}", path,
                                 file.size() < expected ? "truncated" : "too long", expected, file.size()));
  }
  std::int64_t offset = kHeaderBytes;
  for (const Part& part : parts) {
    for (std::int64_t layer = 0; layer < (part.per_layer ? c.layers : 1); ++layer) {
      const std::string name =
          part.per_layer ? fmt::format("transformer.h.{}.{}", layer, part.name) : "transformer." + part.name;
      model.tensors[name] = read_part(file, offset, part, c.dtype);
      offset += part.rows * part.cols * element;
    }
  }
  HostTensor& wte = model.tensors.at("transformer.wte.weight");
  wte.shape[0] = c.vocab;
  wte.data.resize(static_cast<std::size_t>(wte.numel()) * dtype_size(c.dtype));
  return model;
}

}  // namespace ref5d
