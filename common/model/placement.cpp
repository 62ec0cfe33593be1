#include "common/model/placement.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

namespace ref5d {

Shape local_shape(const Shape& global, const Placement& placement) {
  if (placement.dim < 0) return global;
  Shape shape = global;
  auto& dim = shape[static_cast<std::size_t>(placement.dim)] = 0;
  for (const Segment& s : placement.segments) dim += s.end - s.begin;
  return shape;
}

std::vector<Runs> runs_of(const Shape& global, const Placement& placement) {
  const std::int64_t n = product(global);
  if (placement.dim < 0) return {{1, n, 0, n, 0, n}};
  const auto d = static_cast<std::size_t>(placement.dim);
  std::int64_t outer = 1, inner = 1;
  for (std::size_t i = 0; i < d; ++i) outer *= global[i];
  for (std::size_t i = d + 1; i < global.size(); ++i) inner *= global[i];
  const std::int64_t local_dim = local_shape(global, placement)[d];
  std::vector<Runs> runs;
  std::int64_t at = 0;
  for (const Segment& s : placement.segments) {
    runs.push_back({outer, (s.end - s.begin) * inner, at * inner, local_dim * inner, s.begin * inner, global[d] * inner});
    at += s.end - s.begin;
  }
  return runs;
}

FlatRange flat_range(const Placement& placement, std::int64_t local_numel) {
  const FlatRange range{placement.flat_begin, placement.flat_end < 0 ? local_numel : placement.flat_end};
  if (range.begin < 0 || range.begin > range.end || range.end > local_numel) {
    throw std::logic_error("the flat range " + std::to_string(range.begin) + " to " + std::to_string(range.end) +
                           " is not in a part of " + std::to_string(local_numel) + " elements");
  }
  return range;
}

namespace {

// Calls copy(global offset, offset in the part, elements) for each contiguous stretch of the part.
template <typename F>
void for_each_stretch(const Shape& global, const Placement& placement, F&& copy) {
  const FlatRange range = flat_range(placement, product(local_shape(global, placement)));
  for (const Runs& runs : runs_of(global, placement)) {
    for (std::int64_t i = 0; i < runs.count; ++i) {
      const std::int64_t local = runs.local_begin + i * runs.local_stride;
      const std::int64_t begin = std::max(local, range.begin), end = std::min(local + runs.length, range.end);
      if (begin < end) copy(runs.global_begin + i * runs.global_stride + (begin - local), begin - range.begin, end - begin);
    }
  }
}

// Without a flat range.
bool whole_range(const Placement& placement) { return placement.flat_begin == 0 && placement.flat_end < 0; }

}  // namespace

bool is_cut(const Placement& placement) { return placement.dim >= 0 || !whole_range(placement); }

HostTensor cut(const HostTensor& global, const Placement& placement) {
  const Shape shape = local_shape(global.shape, placement);
  const std::int64_t elements = flat_range(placement, product(shape)).size();
  const std::size_t size = dtype_size(global.dtype);
  HostTensor part{global.dtype, whole_range(placement) ? shape : Shape{elements},
                  std::vector<std::byte>(static_cast<std::size_t>(elements) * size)};
  for_each_stretch(global.shape, placement, [&](std::int64_t from, std::int64_t to, std::int64_t n) {
    std::memcpy(part.data.data() + static_cast<std::size_t>(to) * size,
                global.data.data() + static_cast<std::size_t>(from) * size, static_cast<std::size_t>(n) * size);
  });
  return part;
}

void paste(HostTensor& global, const HostTensor& part, const Placement& placement) {
  if (part.dtype != global.dtype) throw std::logic_error("paste between dtypes");
  const std::int64_t elements = flat_range(placement, product(local_shape(global.shape, placement))).size();
  if (part.numel() != elements) {
    throw std::logic_error("paste of " + std::to_string(part.numel()) + " elements into a part of " + std::to_string(elements));
  }
  const std::size_t size = dtype_size(global.dtype);
  for_each_stretch(global.shape, placement, [&](std::int64_t to, std::int64_t from, std::int64_t n) {
    std::memcpy(global.data.data() + static_cast<std::size_t>(to) * size,
                part.data.data() + static_cast<std::size_t>(from) * size, static_cast<std::size_t>(n) * size);
  });
}

}  // namespace ref5d
