// GPT-2 weights in the model files of llm.c.
#pragma once

#include <cstdint>
#include <string>

#include "common/tensor/host_tensor.h"

namespace ref5d {

// The header's fields.
struct LlmcModelConfig {
  std::int64_t max_seq = 0;
  std::int64_t vocab = 0;
  std::int64_t layers = 0;
  std::int64_t heads = 0;
  std::int64_t hidden = 0;
  std::int64_t padded_vocab = 0;  // rows of wte in the file
  Dtype dtype = Dtype::kFp32;     // fp32 (version 3) or bf16 (version 5)
};

struct LlmcModel {
  LlmcModelConfig config;
  // By Hugging Face's GPT-2 names ("transformer.wte.weight", "transformer.h.0.attn.c_attn.weight", …) and in its layout:
  // wte is cut to [vocab, hidden], the four projections of a block are [in, out]. The head is tied to wte and has no entry.
  NamedTensors tensors;
};

// Whether the file begins with the magic number of llm.c models. Throws as InputFile does.
[[nodiscard]] bool is_llmc_model(const std::string& path);

// Reads a model file: int32 header of 256 ([0] 20240326, [1] version 3 = fp32 or 5 = bf16, [2..7] maxT V L NH C Vp), then the
// parameters, layer-stacked, projections (out, in). Throws InputError for another magic number or version, a header that
// makes no sense, and a file that is not exactly as long as the header says.
[[nodiscard]] LlmcModel read_llmc_model(const std::string& path);

}  // namespace ref5d
