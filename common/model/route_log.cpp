#include "common/model/route_log.h"

#include <cstring>

#include "common/device/error.h"

namespace ref5d {

namespace {

std::vector<std::int64_t> integers(const Tensor& t, Stream& stream) {
  std::vector<std::int64_t> all;
  for (const double x : t.to_doubles(stream)) all.push_back(static_cast<std::int64_t>(x));
  return all;
}

}  // namespace

Tensor RouteLog::pass(const Context& ctx, const ResidualRows& here, std::int64_t layer, const Tensor& own) {
  const std::int64_t rows = own.dim(0), k = own.dim(1);
  const std::vector<std::int64_t> sample = integers(here.sample, ctx.stream), order = integers(here.order, ctx.stream);
  std::vector<double> choices = own.to_doubles(ctx.stream);
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t of_sample = sample[static_cast<std::size_t>(r)], token = order[static_cast<std::size_t>(r)];
    std::vector<std::int32_t>& known = routes_.chosen[{layer, of_sample}];
    known.resize(static_cast<std::size_t>(routes_.seq * k), -1);
    for (std::int64_t j = 0; j < k; ++j) {
      std::int32_t& kept = known.at(static_cast<std::size_t>(token * k + j));
      double& choice = choices[static_cast<std::size_t>(r * k + j)];
      if (kept < 0 && mode_ == Mode::kReplay)
        throw InputError("the replayed routing has no choices for token " + std::to_string(token) + " of sample " +
                         std::to_string(of_sample) + " in layer " + std::to_string(layer) +
                         "; give one that covers all steps, or fewer --steps");
      if (kept < 0) kept = static_cast<std::int32_t>(choice);
      choice = kept;
    }
  }
  return Tensor::from_host(HostTensor::from_doubles(choices, {rows, k}, Dtype::kInt32), Dtype::kInt32,
                           MemoryCategory::kActivations, ctx.stream);
}

std::int64_t Routes::merge(const Routes& other) {
  std::int64_t conflicts = 0;
  for (const auto& [key, choices] : other.chosen) {
    std::vector<std::int32_t>& known = chosen[key];
    known.resize(choices.size(), -1);
    for (std::size_t i = 0; i < choices.size(); ++i) {
      if (known[i] < 0) known[i] = choices[i];
      conflicts += choices[i] >= 0 && known[i] != choices[i] ? 1 : 0;
    }
  }
  return conflicts;
}

std::int64_t Routes::differences(const Routes& truth) const {
  std::int64_t n = 0;
  for (const auto& [key, choices] : truth.chosen) {
    const auto found = chosen.find(key);
    for (std::size_t i = 0; i < choices.size(); ++i)
      n += choices[i] >= 0 && (found == chosen.end() || choices[i] != found->second[i]) ? 1 : 0;
  }
  return n;
}

// All in int32: seq, k, then for each entry its layer, its sample and its choices.
std::vector<std::byte> Routes::to_bytes() const {
  std::vector<std::int32_t> all{static_cast<std::int32_t>(seq), static_cast<std::int32_t>(top_k)};
  for (const auto& [key, choices] : chosen) {
    all.push_back(static_cast<std::int32_t>(key.first));
    all.push_back(static_cast<std::int32_t>(key.second));
    all.insert(all.end(), choices.begin(), choices.end());
  }
  const auto* begin = reinterpret_cast<const std::byte*>(all.data());
  return {begin, begin + all.size() * sizeof(std::int32_t)};
}

Routes Routes::from_bytes(const std::vector<std::byte>& bytes) {
  std::vector<std::int32_t> all(bytes.size() / sizeof(std::int32_t));
  std::memcpy(all.data(), bytes.data(), bytes.size());
  Routes routes;
  routes.seq = all.at(0);
  routes.top_k = all.at(1);
  const auto entry = static_cast<std::ptrdiff_t>(routes.seq * routes.top_k);
  for (auto at = all.begin() + 2; at != all.end(); at += 2 + entry)
    routes.chosen[{at[0], at[1]}] = std::vector<std::int32_t>(at + 2, at + 2 + entry);
  return routes;
}

}  // namespace ref5d
