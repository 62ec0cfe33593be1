#include "common/train/weights.h"

#include <functional>

#include "common/device/error.h"
#include "common/io/llmc_model.h"
#include "common/io/safetensors.h"

namespace ref5d {

namespace {

struct Source {
  std::function<bool(const std::string&)> contains;
  std::function<HostTensor(const std::string&)> read;
};

// The name under which the source has the parameter, or "".
std::string name_in(const Source& source, const std::string& name) {
  if (source.contains(name)) return name;
  const std::string prefix = "transformer.";  // left out by files on the hub
  if (name.starts_with(prefix) && source.contains(name.substr(prefix.size()))) return name.substr(prefix.size());
  // An untied model may start from a tied file.
  if (name == "lm_head.weight" && source.contains("model.embed_tokens.weight")) return "model.embed_tokens.weight";
  return "";
}

void load_from(Gpt& gpt, const Source& source, const std::string& path, Stream& stream) {
  for (Parameter* p : gpt.parameters()) {
    const std::string name = name_in(source, p->name);
    if (name.empty()) throw InputError(path + " has no weight " + p->name + "; give the model flags (--model, --layers, ...) that it was made with");
    load_weight(*p, source.read(name), stream);
  }
}

}  // namespace

void load_weights(Gpt& gpt, const std::string& path, Stream& stream) {
  if (is_llmc_model(path)) {
    const LlmcModel model = read_llmc_model(path);
    load_from(gpt, {[&](const std::string& n) { return model.tensors.contains(n); }, [&](const std::string& n) { return model.tensors.at(n); }}, path,
              stream);
  } else {
    const WeightsReader reader(path);
    load_from(gpt, {[&](const std::string& n) { return reader.contains(n); }, [&](const std::string& n) { return reader.read(n); }}, path, stream);
  }
}

}  // namespace ref5d
