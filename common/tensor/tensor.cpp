#include "common/tensor/tensor.h"

#include <stdexcept>

namespace ref5d {

std::string to_string(const Shape& shape) {
  std::string s = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) s += (i ? ", " : "") + std::to_string(shape[i]);
  return s + "]";
}

std::int64_t product(const Shape& shape) {
  std::int64_t n = 1;
  for (auto d : shape) n *= d;
  return n;
}

namespace {
std::int64_t row_elements(const Shape& shape) {
  std::int64_t n = 1;
  for (std::size_t i = 1; i < shape.size(); ++i) n *= shape[i];
  return n;
}
}  // namespace

Tensor Tensor::empty(Shape shape, Dtype dtype, MemoryCategory category, Stream& stream) {
  Tensor t;
  t.shape_ = std::move(shape);
  t.dtype_ = dtype;
  t.ld_ = row_elements(t.shape_);
  t.buffer_ = Buffer(static_cast<std::size_t>(product(t.shape_)) * dtype_size(dtype), category, stream);
  return t;
}

Tensor Tensor::zeros(Shape shape, Dtype dtype, MemoryCategory category, Stream& stream) {
  Tensor t = empty(std::move(shape), dtype, category, stream);
  fill_zero(stream, t.raw(), t.bytes());
  return t;
}

Tensor Tensor::from_host(const HostTensor& host, Dtype dtype, MemoryCategory category, Stream& stream) {
  Tensor t = empty(host.shape, dtype, category, stream);
  t.copy_from(host, stream);
  return t;
}

bool Tensor::contiguous() const { return rank() == 0 || dim(0) <= 1 || ld_ == row_elements(shape_); }

Tensor Tensor::view(Shape shape) const {
  expect_contiguous(*this, "view");
  if (product(shape) != numel()) throw std::logic_error("view of " + to_string(shape_) + " as " + to_string(shape));
  Tensor t = *this;
  t.shape_ = std::move(shape);
  t.ld_ = row_elements(t.shape_);
  return t;
}

Tensor Tensor::rows(std::int64_t begin, std::int64_t end) const {
  if (begin < 0 || begin > end || end > dim(0)) throw std::logic_error("rows outside of " + to_string(shape_));
  Tensor t = *this;
  t.shape_[0] = end - begin;
  t.offset_ += static_cast<std::size_t>(begin * ld_) * dtype_size(dtype_);
  return t;
}

Tensor Tensor::columns(std::int64_t begin, std::int64_t end) const {
  if (rank() != 2 || begin < 0 || begin > end || end > dim(1))
    throw std::logic_error("columns outside of " + to_string(shape_));
  Tensor t = *this;
  t.shape_[1] = end - begin;
  t.offset_ += static_cast<std::size_t>(begin) * dtype_size(dtype_);
  return t;
}

HostTensor Tensor::to_host(Stream& stream) const {
  HostTensor host{dtype_, shape_, std::vector<std::byte>(bytes())};
  if (contiguous()) {
    copy_to_host(stream, host.data.data(), raw(), bytes());
    return host;
  }
  const std::size_t row_bytes = static_cast<std::size_t>(row_elements(shape_)) * dtype_size(dtype_);
  for (std::int64_t r = 0; r < dim(0); ++r) {
    copy_to_host(stream, host.data.data() + static_cast<std::size_t>(r) * row_bytes, rows(r, r + 1).raw(), row_bytes);
  }
  return host;
}

void Tensor::copy_from(const HostTensor& host, Stream& stream) const {
  if (host.numel() != numel()) throw std::logic_error("copy of " + to_string(host.shape) + " into " + to_string(shape_));
  expect_contiguous(*this, "copy_from");
  if (host.dtype == dtype_) {
    copy_to_device(stream, raw(), host.data.data(), bytes());
  } else {
    const HostTensor converted = HostTensor::from_doubles(host.to_doubles(), host.shape, dtype_);
    copy_to_device(stream, raw(), converted.data.data(), bytes());
  }
}

void expect(const Tensor& t, const Shape& shape, Dtype dtype, const char* what) {
  if (t.shape() == shape && t.dtype() == dtype) return;
  throw std::logic_error(std::string(what) + " is " + to_string(t.shape()) + " " + dtype_name(t.dtype()) + ", not " +
                         to_string(shape) + " " + dtype_name(dtype));
}

void expect_contiguous(const Tensor& t, const char* what) {
  if (!t.contiguous()) throw std::logic_error(std::string(what) + " needs a contiguous tensor");
}

void expect_matrix(const Tensor& t, const char* what) {
  if (t.rank() != 2) throw std::logic_error(std::string(what) + " is " + to_string(t.shape()) + ", which is not a matrix");
}

}  // namespace ref5d
