// Safetensors: the file format of Hugging Face weights, of this suite's dumps and of its golden values.
//
// A file is a u64 header length, a JSON header (name -> dtype, shape, data_offsets; optional "__metadata__" of strings),
// and the tensors' bytes, which the offsets must cover without holes or overlaps.
// Format: https://github.com/huggingface/safetensors
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/io/file.h"
#include "common/tensor/host_tensor.h"

namespace ref5d {

struct TensorInfo {
  std::string dtype;  // as in the file: "F64", "F32", "BF16", "I32", …
  std::vector<std::int64_t> shape;
  [[nodiscard]] std::int64_t numel() const;
};

// The name in the format: "F64", "F32", "BF16", "I32".
[[nodiscard]] const char* safetensors_dtype(Dtype dtype);

using Metadata = std::map<std::string, std::string>;

// One file, open for reading. The constructor reads and checks the header only; tensors are read when asked for, so the
// size of the file does not matter. Throws InputError, which names the file and the tensor, for everything that is wrong.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);

  [[nodiscard]] const std::string& path() const { return file_.path(); }
  [[nodiscard]] std::vector<std::string> names() const;  // sorted
  [[nodiscard]] bool contains(const std::string& name) const { return entries_.contains(name); }
  [[nodiscard]] const TensorInfo& info(const std::string& name) const { return entry(name).info; }
  [[nodiscard]] const Metadata& metadata() const { return metadata_; }

  // F64, F32, BF16 and I32 as they are, F16 widened to fp32, I64 narrowed to int32 (InputError if a value does not fit).
  // InputError for other dtypes.
  [[nodiscard]] HostTensor read(const std::string& name) const;
  // Elements [first, first + count) of the row-major tensor, as a tensor of shape [count]: for a rank that needs a slice.
  [[nodiscard]] HostTensor read_range(const std::string& name, std::int64_t first, std::int64_t count) const;

 private:
  struct Entry {
    TensorInfo info;
    std::int64_t begin = 0, end = 0;  // bytes from the start of the data
  };
  [[nodiscard]] const Entry& entry(const std::string& name) const;
  void parse_header(const std::string& header);
  void check_layout() const;
  [[nodiscard]] HostTensor read_elements(const std::string& name, std::int64_t first, std::vector<std::int64_t> shape) const;

  InputFile file_;
  std::int64_t data_start_ = 0;
  std::map<std::string, Entry> entries_;
  Metadata metadata_;
};

// Writes a file tensor by tensor, so that the tensors never need to be in memory together. The file appears under its
// name on commit(). To be loaded by Hugging Face transformers, metadata must hold {"format", "pt"}.
class SafetensorsWriter {
 public:
  using Specs = std::map<std::string, std::pair<Dtype, std::vector<std::int64_t>>>;  // name -> dtype and shape

  SafetensorsWriter(const std::string& path, const Specs& specs, const Metadata& metadata = {});
  // The order in which the tensors must be written: large element types first, which aligns every tensor; then by name.
  [[nodiscard]] const std::vector<std::string>& order() const { return order_; }
  // Writes the next tensor of order(), whole. RunError if it is another one or differs from its spec.
  void write(const std::string& name, const HostTensor& tensor);
  // Writes some more bytes of the next tensors, in order.
  void write_bytes(std::span<const std::byte> bytes);
  // RunError if bytes are missing.
  void commit();

 private:
  AtomicFile file_;
  Specs specs_;
  std::vector<std::string> order_;
  std::vector<std::int64_t> begins_;  // file offset of each tensor of order_
  std::size_t next_ = 0;
  std::int64_t total_ = 0;  // bytes of the complete file
};

void write_safetensors(const std::string& path, const NamedTensors& tensors, const Metadata& metadata = {});

}  // namespace ref5d
