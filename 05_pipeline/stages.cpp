#include "05_pipeline/stages.h"

#include <fmt/format.h>

#include <limits>
#include <numeric>
#include <sstream>

#include "common/app/flag_value.h"
#include "common/device/error.h"

namespace ref5d::pipeline {

namespace {

std::vector<std::int64_t> given_layers(std::int64_t layers, int stages, const std::string& given) {
  std::vector<std::int64_t> counts;
  std::istringstream parts(given);
  if (given.ends_with(',')) throw InputError(fmt::format("--stage-layers {}: ends in a comma; write 2,1,1", printable(given)));
  for (std::string part; std::getline(parts, part, ',');)
    counts.push_back(parse_integer("--stage-layers", part, {.min = 0, .max = layers}));
  const std::int64_t sum = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  if (static_cast<int>(counts.size()) != stages || sum != layers)
    throw InputError(fmt::format("--stage-layers {} gives {} stages {} layers; the model has {} layers on {} stages", given,
                                 counts.size(), sum, layers, stages));
  return counts;
}

// As many for each as can be; of the rest one for each in the middle, then for the first, which has the embedding, and the
// last, which has the head.
std::vector<std::int64_t> even_layers(std::int64_t layers, int stages) {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(stages), layers / stages);
  std::int64_t rest = layers % stages;
  for (std::size_t s = 1; s + 1 < counts.size() && rest > 0; ++s, --rest) ++counts[s];
  if (rest > 0) ++counts.front(), --rest;
  if (rest > 0) ++counts.back();
  return counts;
}

}  // namespace

std::vector<std::int64_t> layers_of_stages(std::int64_t layers, int stages, const std::string& given) {
  const std::vector<std::int64_t> counts = given.empty() ? even_layers(layers, stages) : given_layers(layers, stages, given);
  for (std::size_t s = 1; s + 1 < counts.size(); ++s)
    if (counts[s] == 0)
      throw InputError(fmt::format("stage {} of {} has no layer; give {}", s, stages,
                                   given.empty() ? fmt::format("--layers of at least {}, or fewer stages", stages - 2)
                                                 : "other --stage-layers: only the first and the last may have none"));
  return counts;
}

std::vector<Units> units_of_stages(const std::vector<std::int64_t>& layers) {
  std::vector<Units> units;
  std::int64_t at = 0;
  for (std::size_t s = 0; s < layers.size(); ++s) {
    const std::int64_t begin = at;
    at += layers[s] + (s == 0 ? 1 : 0) + (s + 1 == layers.size() ? 1 : 0);
    units.push_back({begin, at});
  }
  return units;
}

}  // namespace ref5d::pipeline
