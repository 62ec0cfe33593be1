#include "common/train/weights.h"

#include <filesystem>
#include <functional>
#include <set>
#include <vector>

#include "common/device/error.h"
#include "common/io/llmc_model.h"
#include "common/io/weights_reader.h"

namespace ref5d {

namespace {

struct Source {
  std::vector<std::string> names;
  std::function<bool(const std::string&)> contains;
  std::function<HostTensor(const std::string&)> read;
};

// The name under which the source has the parameter, or "".
std::string name_in(const Source& source, const std::string& name, UntiedHead head) {
  if (source.contains(name)) return name;
  const std::string prefix = "transformer.";  // left out by files on the hub
  if (name.starts_with(prefix) && source.contains(name.substr(prefix.size()))) return name.substr(prefix.size());
  if (name == "lm_head.weight" && head == UntiedHead::kMayBeEmbedding) {
    for (const char* tied : {"model.embed_tokens.weight", "transformer.wte.weight", "wte.weight"})
      if (source.contains(tied)) return tied;
  }
  return "";
}

// What files hold beside weights: masks and tables that older versions of transformers saved, and the copy of a tied head.
bool is_no_weight(const std::string& name, const Gpt& gpt) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") || name.ends_with(".rotary_emb.inv_freq") ||
         (gpt.config().tied && name == "lm_head.weight");
}

// A tied model's head is its embedding: a file that says otherwise is of another model.
void check_tied_head(const Gpt& gpt, const Source& source, const std::string& path) {
  if (!gpt.config().tied || !source.contains("lm_head.weight")) return;
  const std::string embedding = name_in(source, gpt.embedding->tokens->name, UntiedHead::kOwn);
  const HostTensor a = source.read("lm_head.weight"), b = source.read(embedding);
  if (a.shape == b.shape && a.dtype == b.dtype && a.data == b.data) return;
  throw InputError(path + " has a lm_head.weight other than " + embedding + ", but the model's head is tied; use --no-tied");
}

void load_from(Gpt& gpt, const Source& source, const std::string& path, Stream& stream, UntiedHead head) {
  std::set<std::string> unused(source.names.begin(), source.names.end());
  std::vector<Parameter*> all = gpt.parameters();
  for (Parameter* p : gpt.buffers()) all.push_back(p);
  for (Parameter* p : all) {
    const std::string name = name_in(source, p->name, head);
    if (name.empty())
      throw InputError(path + " has no weight " + p->name +
                       "; give the model flags (--model, --layers, ...) that it was made with");
    try {
      load_weight(*p, source.read(name), stream);
    } catch (const InputError& e) {
      throw InputError(path + ": " + e.what());
    }
    unused.erase(name);
  }
  check_tied_head(gpt, source, path);
  // A weight left over means another model: more layers, biases, a norm of queries and keys.
  for (const std::string& name : unused) {
    if (is_no_weight(name, gpt)) continue;
    throw InputError(path + " has a weight " + name +
                     ", for which the model has no place; give the model flags (--model, --layers, ...) that it was made with");
  }
}

}  // namespace

void load_weights(Gpt& gpt, const std::string& path, Stream& stream, UntiedHead head) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error) && is_llmc_model(path)) {
    const LlmcModel model = read_llmc_model(path);
    std::vector<std::string> names;
    for (const auto& [name, tensor] : model.tensors) names.push_back(name);
    load_from(gpt,
              {names, [&](const std::string& n) { return model.tensors.contains(n); },
               [&](const std::string& n) { return model.tensors.at(n); }},
              path, stream, head);
  } else {
    const WeightsReader reader(path);
    load_from(gpt,
              {reader.names(), [&](const std::string& n) { return reader.contains(n); },
               [&](const std::string& n) { return reader.read(n); }},
              path, stream, head);
  }
}

}  // namespace ref5d
