// Weights from files into a model.
#pragma once

#include <string>

#include "common/model/gpt.h"

namespace ref5d {

// Where an untied model finds its head in a file that has none: nowhere, or in the embedding, as tied files store it.
enum class UntiedHead { kOwn, kMayBeEmbedding };

// Fills a model's parameters from `path`: a safetensors file, a folder of them with an index (Hugging Face names), or an llm.c
// model file. A missing "transformer." prefix, a head tied to the embedding and stored masks are understood. Throws InputError
// naming the first parameter that is missing or of another shape, or a weight that the model has no place for, or a head other
// than the embedding where the model's is tied.
void load_weights(Gpt& gpt, const std::string& path, Stream& stream, UntiedHead head = UntiedHead::kMayBeEmbedding);

}  // namespace ref5d
