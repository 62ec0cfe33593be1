#include "common/train/gather_parts.h"

#include <cstring>

namespace ref5d {

namespace {

// A placement as whole numbers: the dim, the flat range, then the segments.
Bytes pack(const Placement& p, const HostTensor& part) {
  std::vector<std::int64_t> head{p.dim, p.flat_begin, p.flat_end, static_cast<std::int64_t>(p.segments.size())};
  for (const Segment& s : p.segments) head.insert(head.end(), {s.begin, s.end});
  const auto* begin = reinterpret_cast<const std::byte*>(head.data());
  Bytes bytes(begin, begin + head.size() * sizeof(std::int64_t));
  bytes.insert(bytes.end(), part.data.begin(), part.data.end());
  return bytes;
}

struct Part {
  Placement placement;
  Bytes data;
};

Part unpack(const Bytes& bytes) {
  std::size_t at = 0;
  const auto next = [&] {
    std::int64_t value = 0;
    std::memcpy(&value, bytes.data() + at, sizeof(value));
    at += sizeof(value);
    return value;
  };
  Part part;
  part.placement.dim = static_cast<int>(next());
  part.placement.flat_begin = next();
  part.placement.flat_end = next();
  part.placement.segments.resize(static_cast<std::size_t>(next()));
  for (Segment& s : part.placement.segments) {
    s.begin = next();
    s.end = next();
  }
  part.data.assign(bytes.begin() + static_cast<std::ptrdiff_t>(at), bytes.end());
  return part;
}

}  // namespace

Gather gather_parts(const Group& group) {
  return [group](const Parameter& p, const HostTensor& part) {
    const std::vector<Bytes> all = gather_on_host(group, pack(p.placement, part));
    if (group.rank != 0) return HostTensor{part.dtype, {0}, {}};
    const std::size_t size = dtype_size(part.dtype);
    HostTensor global{part.dtype, p.global_shape, Bytes(static_cast<std::size_t>(product(p.global_shape)) * size)};
    for (const Bytes& bytes : all) {
      Part one = unpack(bytes);
      const auto n = static_cast<std::int64_t>(one.data.size() / size);
      paste(global, {part.dtype, {n}, std::move(one.data)}, one.placement);
    }
    return global;
  };
}

HostTensor gather_rows(const Group& group, const HostTensor& mine) {
  const std::vector<Bytes> all = gather_on_host(group, mine.data);
  HostTensor joined{mine.dtype, {0}, {}};
  if (group.rank != 0) return joined;
  for (const Bytes& bytes : all) joined.data.insert(joined.data.end(), bytes.begin(), bytes.end());
  joined.shape = mine.shape;
  const std::size_t row_bytes = mine.data.size() / static_cast<std::size_t>(mine.shape[0]);
  joined.shape[0] = static_cast<std::int64_t>(joined.data.size() / row_bytes);
  return joined;
}

}  // namespace ref5d
