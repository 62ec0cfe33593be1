// Weights from files into a model.
#pragma once

#include <string>

#include "common/model/gpt.h"

namespace ref5d {

// Fills a model's parameters from `path`: a safetensors file, a folder of them with an index (Hugging Face names), or an llm.c
// model file. A missing "transformer." prefix, a head tied to the embedding and stored masks are understood. Throws InputError
// naming the first parameter that is missing or of another shape, or a weight that the model has no place for.
void load_weights(Gpt& gpt, const std::string& path, Stream& stream);

}  // namespace ref5d
