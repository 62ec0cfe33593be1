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
  if (mode_ == Mode::kRecord && ctx.recomputing) return own;
  const std::vector<std::int64_t> sample = integers(here.sample, ctx.stream), order = integers(here.order, ctx.stream);
  std::vector<double> choices = own.to_doubles(ctx.stream);
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::pair key{layer, sample[static_cast<std::size_t>(r)]};
    const std::int64_t token = order[static_cast<std::size_t>(r)];
    if (mode_ == Mode::kRecord) routes_.chosen[key].resize(static_cast<std::size_t>(routes_.seq * k));
    const auto found = routes_.chosen.find(key);
    if (found == routes_.chosen.end() && mode_ == Mode::kReplayWhereKnown) continue;
    if (found == routes_.chosen.end())
      throw InputError("the replayed routing has no choices for sample " + std::to_string(key.second) + " in layer " +
                       std::to_string(layer));
    for (std::int64_t j = 0; j < k; ++j) {
      std::int32_t& kept = found->second.at(static_cast<std::size_t>(token * k + j));
      double& choice = choices[static_cast<std::size_t>(r * k + j)];
      if (mode_ == Mode::kRecord) {
        kept = static_cast<std::int32_t>(choice);
      } else {
        choice = kept;
      }
    }
  }
  if (mode_ == Mode::kRecord) return own;
  return Tensor::from_host(HostTensor::from_doubles(choices, {rows, k}, Dtype::kInt32), Dtype::kInt32,
                           MemoryCategory::kActivations, ctx.stream);
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
