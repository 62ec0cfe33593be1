// Counts the bytes that kernels read and write, a tensor once for each kernel that touches it. Only operations that have a
// fused and an unfused form are counted (kernels/counted.h), since those are what is compared.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ref5d {

class BytesLedger {
 public:
  void read(std::size_t bytes) { read_ += static_cast<std::int64_t>(bytes); }
  void wrote(std::size_t bytes) { written_ += static_cast<std::int64_t>(bytes); }
  [[nodiscard]] std::int64_t bytes_read() const { return read_; }
  [[nodiscard]] std::int64_t bytes_written() const { return written_; }
  [[nodiscard]] std::int64_t total() const { return read_ + written_; }
  void reset() { read_ = written_ = 0; }

 private:
  std::int64_t read_ = 0, written_ = 0;
};

}  // namespace ref5d
