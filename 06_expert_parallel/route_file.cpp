#include "06_expert_parallel/route_file.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/device/error.h"
#include "common/io/safetensors.h"

namespace ref5d::expert_parallel {

namespace {

HostTensor read_layer(const SafetensorsFile& file, const GptConfig& model, std::int64_t layer, std::int64_t samples) {
  const std::string name = fmt::format("sub/{}/experts", layer);
  if (!file.contains(name))
    throw InputError(
        fmt::format("--route-replay {} has no tensor {}; write one with --dump FILE --dump-level full", file.path(), name));
  if (const std::string dtype = file.info(name).dtype; dtype != "I32" && dtype != "I64")
    throw InputError(
        fmt::format("--route-replay {}: {} holds {}; numbers of experts are I32 or I64", file.path(), name, dtype));
  HostTensor t = file.read(name);
  const bool fits = t.shape.size() == 3 && t.shape[0] >= samples && t.shape[1] == model.seq && t.shape[2] == model.moe.top_k;
  if (!fits)
    throw InputError(
        fmt::format("--route-replay {}: {} has shape {}; the run needs [at least {}, {}, {}]: choices for every sample "
                    "of all steps",
                    file.path(), name, to_string(t.shape), samples, model.seq, model.moe.top_k));
  return t;
}

void expect_choices(const std::string& path, const std::vector<std::int32_t>& choices, const GptConfig& model) {
  const auto k = static_cast<std::ptrdiff_t>(model.moe.top_k);
  for (auto token = choices.begin(); token != choices.end(); token += k) {
    std::vector<std::int32_t> sorted(token, token + k);
    std::sort(sorted.begin(), sorted.end());
    const bool twice = std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end();
    if (sorted.front() < 0 || sorted.back() >= model.moe.experts || twice)
      throw InputError(fmt::format("--route-replay {}: a token's experts must be {} different ones from 0 to {}", path, k,
                                   model.moe.experts - 1));
  }
}

}  // namespace

Routes read_routes(const std::string& path, const GptConfig& model, std::int64_t first, std::int64_t samples) {
  const SafetensorsFile file(path);
  Routes routes{model.seq, model.moe.top_k, {}};
  const std::int64_t of_sample = model.seq * model.moe.top_k;
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    const std::vector<double> values = read_layer(file, model, layer, samples).to_doubles();
    for (std::int64_t s = 0; s < samples; ++s) {
      std::vector<std::int32_t>& choices = routes.chosen[{layer, first + s}];
      for (std::int64_t i = s * of_sample; i < (s + 1) * of_sample; ++i)
        choices.push_back(static_cast<std::int32_t>(values[static_cast<std::size_t>(i)]));
      expect_choices(path, choices, model);
    }
  }
  return routes;
}

}  // namespace ref5d::expert_parallel
