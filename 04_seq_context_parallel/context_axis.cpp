#include "04_seq_context_parallel/context_axis.h"

#include <fmt/format.h>

#include <tuple>

#include "common/device/device.h"
#include "common/device/error.h"

namespace ref5d::context_parallel {

std::vector<std::string> kind_names() { return {"ring", "allgather", "ulysses"}; }

namespace {

// Ranks of one group: those that gather or exchange.
int group_size(const ContextParallelOptions& o, int ranks) {
  if (ranks == 1 || o.kind == "ring") return 1;
  if (o.kind == "allgather" || o.ulysses_size == 0) return ranks;
  if (ranks % o.ulysses_size != 0)
    throw InputError(fmt::format("--ulysses-size {} does not divide the {} ranks along cp", o.ulysses_size, ranks));
  return o.ulysses_size;
}

SequenceLayout without_rest(SequenceLayout layout) {
  const auto whole = static_cast<std::int32_t>(layout.length() / (2 * layout.ranks()) * (2 * layout.ranks()));
  for (Places& p : layout.places) std::erase_if(p, [&](std::int32_t place) { return place >= whole; });
  return layout;
}

}  // namespace

ContextAxis::ContextAxis(Mesh& mesh, const ContextParallelOptions& options, std::int64_t length)
    : options_(options), rank_(mesh["cp"].rank()) {
  const int ranks = mesh["cp"].size(), size = group_size(options, ranks);
  layout_ = make_layout(options.layout, length, ranks);
  if (options.faults.trim) layout_ = without_rest(layout_);
  layout_of_ring_ = joined(layout_, size);
  const auto first = layout_.places.begin() + rank_ / size * size;
  layout_of_group_.places.assign(first, first + size);
  // One of the two is the whole axis, unless it is cut into groups on a ring.
  std::tie(group_, ring_) = mesh.split("cp", size);
  if (size == 1) ring_ = &mesh["cp"];
  if (size == ranks) group_ = &mesh["cp"];
  // On the CPU the newest stream goes first, and communication should: so the one that computes must be there already.
  (void)device().compute();
  stream_ = std::make_unique<Stream>("cp");
}

}  // namespace ref5d::context_parallel
