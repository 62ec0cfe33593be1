#include "common/train/gather_parts.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace ref5d {

namespace {

// Whole numbers, then data.
class Packer {
 public:
  void add(std::int64_t value) {
    const auto* begin = reinterpret_cast<const std::byte*>(&value);
    bytes_.insert(bytes_.end(), begin, begin + sizeof(value));
  }
  void add(const std::vector<Segment>& segments) {
    add(static_cast<std::int64_t>(segments.size()));
    for (const Segment& s : segments) {
      add(s.begin);
      add(s.end);
      add(s.replicas);
    }
  }
  [[nodiscard]] Bytes with(const Bytes& data) {
    bytes_.insert(bytes_.end(), data.begin(), data.end());
    return std::move(bytes_);
  }

 private:
  Bytes bytes_;
};

class Unpacker {
 public:
  explicit Unpacker(const Bytes& bytes) : bytes_(bytes) {}
  [[nodiscard]] std::int64_t number() {
    std::int64_t value = 0;
    std::memcpy(&value, bytes_.data() + at_, sizeof(value));
    at_ += sizeof(value);
    return value;
  }
  [[nodiscard]] std::vector<Segment> segments() {
    std::vector<Segment> all(static_cast<std::size_t>(number()));
    for (Segment& s : all) {
      s.begin = number();
      s.end = number();
      s.replicas = number();
    }
    return all;
  }
  [[nodiscard]] Bytes rest() const { return {bytes_.begin() + static_cast<std::ptrdiff_t>(at_), bytes_.end()}; }

 private:
  const Bytes& bytes_;
  std::size_t at_ = 0;
};

Bytes pack(const Placement& p, const HostTensor& part) {
  Packer packer;
  packer.add(p.dim);
  packer.add(p.flat_begin);
  packer.add(p.flat_end);
  packer.add(p.segments);
  return packer.with(part.data);
}

}  // namespace

std::vector<PlacedPart> gather_placed_parts(const Group& group, const Placement& placement, const HostTensor& part) {
  std::vector<PlacedPart> parts;
  for (const Bytes& bytes : gather_on_host(group, pack(placement, part))) {
    Unpacker of_rank(bytes);
    Placement its;
    its.dim = static_cast<int>(of_rank.number());
    its.flat_begin = of_rank.number();
    its.flat_end = of_rank.number();
    its.segments = of_rank.segments();
    Bytes data = of_rank.rest();
    const auto n = static_cast<std::int64_t>(data.size() / dtype_size(part.dtype));
    parts.push_back({std::move(its), {part.dtype, {n}, std::move(data)}});
  }
  return parts;
}

Gather gather_parts(const Group& group) {
  return [group](const Parameter& p, const HostTensor& part) {
    const std::vector<PlacedPart> parts = gather_placed_parts(group, p.placement, part);
    if (group.rank != 0) return HostTensor{part.dtype, {0}, {}};
    const auto elements = static_cast<std::size_t>(product(p.global_shape));
    HostTensor global{part.dtype, p.global_shape, Bytes(elements * dtype_size(part.dtype))};
    for (const PlacedPart& one : parts) paste(global, one.data, one.placement);
    return global;
  };
}

namespace {

struct Part {
  std::vector<Segment> rows, columns;
  std::vector<double> values;
};

// Every index of the segments, in their order.
std::vector<std::size_t> indices(const std::vector<Segment>& segments) {
  std::vector<std::size_t> all;
  for (const Segment& s : segments)
    for (std::int64_t i = s.begin; i < s.end; ++i) all.push_back(static_cast<std::size_t>(i));
  return all;
}

std::int64_t end_of(const std::vector<Segment>& segments) {
  std::int64_t end = 0;
  for (const Segment& s : segments) end = std::max(end, s.end);
  return end;
}

}  // namespace

HostTensor gather_activation(const Group& group, const HostTensor& mine, const ActivationPart& part) {
  Packer packer;
  const auto or_all = [](const std::vector<Segment>& segments, std::int64_t n) {
    return segments.empty() ? std::vector<Segment>{{0, n}} : segments;
  };
  packer.add(static_cast<std::int64_t>(mine.dtype));
  packer.add(or_all(part.rows, mine.shape[0]));
  packer.add(or_all(part.columns, mine.numel() / std::max<std::int64_t>(mine.shape[0], 1)));
  const std::vector<Bytes> all = gather_on_host(group, packer.with(mine.data));
  if (group.rank != 0) return {mine.dtype, {0}, {}};
  std::vector<Part> parts;
  std::int64_t rows = 0, columns = 0;
  Dtype dtype = mine.dtype;
  for (const Bytes& bytes : all) {
    Unpacker of_rank(bytes);
    const auto its_dtype = static_cast<Dtype>(of_rank.number());
    Part& p = parts.emplace_back();
    p.rows = of_rank.segments();
    p.columns = of_rank.segments();
    const Bytes data = of_rank.rest();
    if (data.empty()) {  // another pipeline stage's
      parts.pop_back();
      continue;
    }
    dtype = its_dtype;
    const auto n = static_cast<std::int64_t>(data.size() / dtype_size(dtype));
    p.values = HostTensor{dtype, {n}, data}.to_doubles();
    if (p.values.size() != indices(p.rows).size() * indices(p.columns).size())
      throw std::logic_error("a rank has more or fewer elements of an activation than its part of it");
    rows = std::max(rows, end_of(p.rows));
    columns = std::max(columns, end_of(p.columns));
  }
  std::vector<double> global(static_cast<std::size_t>(rows * columns), 0.0);
  for (const Part& p : parts) {
    auto value = p.values.begin();
    const std::vector<std::size_t> its_columns = indices(p.columns);
    for (std::size_t row : indices(p.rows)) {
      for (std::size_t column : its_columns) {
        double& element = global[row * static_cast<std::size_t>(columns) + column];
        element = part.partial ? element + *value : *value;
        ++value;
      }
    }
  }
  return HostTensor::from_doubles(global, {rows, columns}, dtype);
}

}  // namespace ref5d
