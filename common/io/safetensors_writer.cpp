#include <fmt/core.h>

#include <algorithm>

#include "common/device/error.h"
#include "common/io/json.h"
#include "common/io/safetensors.h"

namespace ref5d {
namespace {

std::int64_t bytes_of(const SafetensorsWriter::Specs::mapped_type& spec) {
  std::int64_t n = static_cast<std::int64_t>(dtype_size(spec.first));
  for (const std::int64_t dim : spec.second) n *= dim;
  return n;
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(const std::string& path, const Specs& specs, const Metadata& metadata)
    : file_(path), specs_(specs) {
  for (const auto& [name, spec] : specs_) {
    if (name == "__metadata__") throw InputError(fmt::format("cannot write {}: a tensor may not be called __metadata__", path));
    order_.push_back(name);
  }
  std::stable_sort(order_.begin(), order_.end(), [&](const std::string& a, const std::string& b) {
    return dtype_size(specs_.at(a).first) > dtype_size(specs_.at(b).first);
  });
  std::map<std::string, std::int64_t> offsets;
  std::int64_t data_bytes = 0;
  for (const std::string& name : order_) {
    offsets[name] = data_bytes;
    begins_.push_back(data_bytes);
    data_bytes += bytes_of(specs_.at(name));
  }

  Json header = Json::object();
  if (!metadata.empty()) {
    Json& out = header.append_member("__metadata__", Json::object());
    for (const auto& [key, value] : metadata) out.append_member(key, value);
  }
  for (const auto& [name, spec] : specs_) {
    const std::int64_t begin = offsets.at(name);
    header.append_member(name, Json::object({{"dtype", safetensors_dtype(spec.first)},
                                             {"shape", Json::array_of(spec.second)},
                                             {"data_offsets", Json::array({begin, begin + bytes_of(spec)})}}));
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');  // so that the data begins at a multiple of 8
  const std::uint64_t length = text.size();
  file_.write(std::as_bytes(std::span(&length, 1)));
  file_.write(text);
  for (std::int64_t& begin : begins_) begin += file_.bytes_written();
  total_ = file_.bytes_written() + data_bytes;
}

void SafetensorsWriter::write(const std::string& name, const HostTensor& tensor) {
  // Tensors without elements, and those that write_bytes has completed, are passed over.
  while (next_ < order_.size() && order_[next_] != name &&
         begins_[next_] + bytes_of(specs_.at(order_[next_])) <= file_.bytes_written())
    ++next_;
  if (next_ == order_.size() || order_[next_] != name || begins_[next_] != file_.bytes_written()) {
    throw RunError(fmt::format("tensor '{}' is written out of order; the next is '{}'", name,
                               next_ < order_.size() ? order_[next_] : "none"));
  }
  const auto& [dtype, shape] = specs_.at(name);
  if (tensor.dtype != dtype || tensor.shape != shape ||
      static_cast<std::int64_t>(tensor.data.size()) != bytes_of(specs_.at(name))) {
    throw RunError(fmt::format("tensor '{}' differs in dtype, shape or size from what the file's header says", name));
  }
  write_bytes(tensor.data);
  ++next_;
}

void SafetensorsWriter::write_bytes(std::span<const std::byte> bytes) {
  const std::int64_t after = file_.bytes_written() + static_cast<std::int64_t>(bytes.size());
  if (after > total_) throw RunError(fmt::format("{} bytes are written to a safetensors file of {}", after, total_));
  file_.write(bytes);
}

void SafetensorsWriter::commit() {
  if (file_.bytes_written() != total_) {
    throw RunError(fmt::format("a safetensors file of {} bytes is committed after {}", total_, file_.bytes_written()));
  }
  file_.commit();
}

void write_safetensors(const std::string& path, const NamedTensors& tensors, const Metadata& metadata) {
  SafetensorsWriter::Specs specs;
  for (const auto& [name, tensor] : tensors) specs.emplace(name, std::pair(tensor.dtype, tensor.shape));
  SafetensorsWriter writer(path, specs, metadata);
  for (const std::string& name : writer.order()) writer.write(name, tensors.at(name));
  writer.commit();
}

}  // namespace ref5d
