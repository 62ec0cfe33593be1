// A tensor on the device: a shape over a reference-counted buffer.
//
// Row-major. Everything but the leading dim is contiguous; the leading dim may have a larger stride (`ld`), so that columns of
// a packed matrix (the q part of [q|k|v], say) are a tensor too. A view shares the buffer and keeps it alive.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "common/device/memory.h"
#include "common/device/stream.h"
#include "common/tensor/dtype.h"
#include "common/tensor/host_tensor.h"

namespace ref5d {

using Shape = std::vector<std::int64_t>;
[[nodiscard]] std::string to_string(const Shape& shape);
[[nodiscard]] std::int64_t product(const Shape& shape);

class Tensor {
 public:
  Tensor() = default;  // undefined

  // Contents undefined.
  [[nodiscard]] static Tensor empty(Shape shape, Dtype dtype, MemoryCategory category, Stream& stream);
  [[nodiscard]] static Tensor zeros(Shape shape, Dtype dtype, MemoryCategory category, Stream& stream);
  // Converts to `dtype` (rounding to nearest even) and copies.
  [[nodiscard]] static Tensor from_host(const HostTensor& host, Dtype dtype, MemoryCategory category, Stream& stream);

  explicit operator bool() const { return static_cast<bool>(buffer_); }
  [[nodiscard]] const Shape& shape() const { return shape_; }
  [[nodiscard]] int rank() const { return static_cast<int>(shape_.size()); }
  // Negative counts from the back.
  [[nodiscard]] std::int64_t dim(int i) const { return shape_[static_cast<std::size_t>(i < 0 ? i + rank() : i)]; }
  // Elements; none where the tensor is undefined.
  [[nodiscard]] std::int64_t numel() const { return buffer_ ? product(shape_) : 0; }
  [[nodiscard]] Dtype dtype() const { return dtype_; }
  [[nodiscard]] std::size_t bytes() const { return static_cast<std::size_t>(numel()) * dtype_size(dtype_); }
  // Elements from one index of dim 0 to the next.
  [[nodiscard]] std::int64_t ld() const { return ld_; }
  [[nodiscard]] bool contiguous() const;

  [[nodiscard]] std::byte* raw() const { return buffer_.data() + offset_; }
  template <typename T>
  [[nodiscard]] T* data() const {
    return reinterpret_cast<T*>(raw());
  }

  // Counts the tensor's whole buffer under another category.
  void set_category(MemoryCategory category) const { buffer_.set_category(category); }

  // Views. `view` needs a contiguous tensor and the same number of elements.
  [[nodiscard]] Tensor view(Shape shape) const;
  // dim 0 from begin to end.
  [[nodiscard]] Tensor rows(std::int64_t begin, std::int64_t end) const;
  // dim 1 of a matrix from begin to end.
  [[nodiscard]] Tensor columns(std::int64_t begin, std::int64_t end) const;

  // Copies to the host; waits for the stream.
  [[nodiscard]] HostTensor to_host(Stream& stream) const;
  [[nodiscard]] std::vector<double> to_doubles(Stream& stream) const { return to_host(stream).to_doubles(); }
  // Overwrites with host values of the same number of elements, converted.
  void copy_from(const HostTensor& host, Stream& stream) const;

 private:
  Shape shape_;
  Dtype dtype_ = Dtype::kFp32;
  std::int64_t ld_ = 0;
  std::size_t offset_ = 0;
  Buffer buffer_;
};

// Throws std::logic_error naming `what` unless the shape and dtype are as expected: a mistake in the caller's code.
void expect(const Tensor& t, const Shape& shape, Dtype dtype, const char* what);
void expect_contiguous(const Tensor& t, const char* what);
void expect_matrix(const Tensor& t, const char* what);

}  // namespace ref5d
