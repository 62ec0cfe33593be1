#include "04_seq_context_parallel/context_axis.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/comm/world.h"
#include "common/device/device.h"
#include "common/device/error.h"

namespace ref5d::context_parallel {

std::vector<std::string> kind_names() { return {"ring", "allgather", "ulysses"}; }

int group_size(const ContextParallelOptions& o, int ranks) {
  if (ranks == 1 || o.kind == "ring") return 1;
  if (o.kind == "allgather" || o.ulysses_size == 0) return ranks;
  if (ranks % o.ulysses_size != 0)
    throw InputError(fmt::format("--ulysses-size {} does not divide the {} ranks along cp; use {}", o.ulysses_size, ranks,
                                 largest_divisor(ranks, o.ulysses_size)));
  return o.ulysses_size;
}

int largest_divisor(int ranks, std::int64_t most) {
  int size = static_cast<int>(std::min<std::int64_t>(ranks, most));
  while (ranks % size != 0) --size;
  return size;
}

namespace {

SequenceLayout without_rest(SequenceLayout layout) {
  const auto whole = static_cast<std::int32_t>(layout.length() / (2 * layout.ranks()) * (2 * layout.ranks()));
  for (Places& p : layout.places) std::erase_if(p, [&](std::int32_t place) { return place >= whole; });
  return layout;
}

}  // namespace

ContextAxis::ContextAxis(Mesh& mesh, const ContextParallelOptions& options, std::int64_t length)
    : options_(options), rank_(mesh["cp"].rank()) {
  const int ranks = mesh["cp"].size(), size = context_parallel::group_size(options, ranks);
  layout_ = make_layout(options.layout, length, ranks);
  if (options.faults.trim) layout_ = without_rest(layout_);
  layout_of_ring_ = joined(layout_, size);
  const auto first = layout_.places.begin() + rank_ / size * size;
  layout_of_group_.places.assign(first, first + size);
  if (size > 1) group_ = size == ranks ? &mesh["cp"] : mesh.split("cp", size).first;
  if (size < ranks) ring_ = size == 1 ? &mesh["cp"] : mesh.split("cp", size).second;
  // On the CPU the newest stream goes first, and communication should: so the one that computes must be there already.
  (void)device().compute();
  stream_ = std::make_unique<Stream>("cp");
}

void ContextAxis::communicate(Context& ctx, const char* phase, const std::function<void(Stream&)>& operation) const {
  const TrafficLedger::Phase scope(world().traffic(), phase);
  order(ctx.stream, *stream_);
  operation(*stream_);
  order(*stream_, ctx.stream);
}

}  // namespace ref5d::context_parallel
