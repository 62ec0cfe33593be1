#include "common/train/replicas.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>

#include "common/train/gather_parts.h"

namespace ref5d {

std::string fingerprint(const std::vector<HostTensor>& tensors) {
  std::uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  for (const HostTensor& tensor : tensors) {
    for (std::byte b : tensor.data) hash = (hash ^ static_cast<std::uint64_t>(b)) * 0x100000001b3u;
  }
  return fmt::format("{:016x}", hash);
}

bool equal_on_all(const Group& group, const std::vector<Tensor>& tensors, Stream& stream) {
  std::vector<HostTensor> mine;
  for (const Tensor& t : tensors) mine.push_back(t.to_host(stream));
  const std::vector<Bytes> all = all_gather_on_host(group, to_bytes(fingerprint(mine)));
  return std::all_of(all.begin(), all.end(), [&](const Bytes& b) { return b == all[0]; });
}

namespace {

// A global tensor as it is pieced together, and how many elements a later part had otherwise than an earlier one.
class Overlaps {
 public:
  Overlaps(const Shape& shape, Dtype dtype)
      : size_(dtype_size(dtype)),
        global_{dtype, shape, Bytes(static_cast<std::size_t>(product(shape)) * size_)},
        seen_{Dtype::kInt32, shape, Bytes(static_cast<std::size_t>(product(shape)) * sizeof(std::int32_t))} {}

  void add(const PlacedPart& part) {
    const HostTensor before = cut(global_, part.placement), known = cut(seen_, part.placement);
    HostTensor now{Dtype::kInt32, {part.data.numel()}, Bytes(known.data.size())};
    for (std::size_t i = 0; i < static_cast<std::size_t>(part.data.numel()); ++i) {
      const std::int32_t one = 1;
      std::int32_t was = 0;
      std::memcpy(&was, known.data.data() + i * sizeof(was), sizeof(was));
      std::memcpy(now.data.data() + i * sizeof(one), &one, sizeof(one));
      const bool same = std::memcmp(before.data.data() + i * size_, part.data.data.data() + i * size_, size_) == 0;
      unequal_ += was == 1 && !same ? 1 : 0;
    }
    paste(global_, part.data, part.placement);
    paste(seen_, now, part.placement);
  }
  [[nodiscard]] std::int64_t unequal() const { return unequal_; }

 private:
  std::size_t size_;
  HostTensor global_, seen_;
  std::int64_t unequal_ = 0;
};

}  // namespace

std::int64_t unequal_elements(const Group& group, const std::vector<const Parameter*>& parameters, Stream& stream) {
  std::int64_t unequal = 0;
  for (const Parameter* p : parameters) {
    Overlaps overlaps(p->global_shape, p->weight.dtype());
    for (const PlacedPart& part : gather_placed_parts(group, p->placement, held_part(*p, p->weight).to_host(stream)))
      overlaps.add(part);
    unequal += overlaps.unequal();
  }
  return unequal;
}

}  // namespace ref5d
