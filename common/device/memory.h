// Device memory: reference-counted buffers, freed in stream order, each counted in the memory ledger.
#pragma once

#include <cstddef>
#include <memory>

#include "common/device/memory_ledger.h"
#include "common/device/stream.h"

namespace ref5d {

// A block of device memory. Copies share it; the last one frees it in the order of the stream it was allocated on, so
// that work already enqueued there may still use it. Whoever uses it on another stream makes the own stream wait for that
// (order()) before dropping the last reference.
class Buffer {
 public:
  Buffer() = default;
  // Contents are undefined. Zero bytes give a null pointer. Throws RunError when memory (or the cap) is exhausted.
  Buffer(std::size_t bytes, MemoryCategory category, Stream& stream);

  [[nodiscard]] std::byte* data() const { return block_ ? block_->data : nullptr; }
  [[nodiscard]] std::size_t bytes() const { return block_ ? block_->bytes : 0; }
  [[nodiscard]] MemoryCategory category() const { return block_->category; }
  explicit operator bool() const { return block_ != nullptr; }
  // Counts the block under another category from now on.
  void set_category(MemoryCategory category) const;

 private:
  struct Block {
    std::byte* data = nullptr;
    std::size_t bytes = 0;
    MemoryCategory category{};
    Stream* stream = nullptr;
    Block() = default;
    ~Block();
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;
  };
  std::shared_ptr<Block> block_;
};

// Page-locked host memory for asynchronous copies.
class PinnedBuffer {
 public:
  explicit PinnedBuffer(std::size_t bytes);
  ~PinnedBuffer();
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;
  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

namespace backend {
// One per mode: stream-ordered allocation. `bytes` > 0; the same number is given back at release.
[[nodiscard]] std::byte* allocate(std::size_t bytes, Stream& stream);
void release(std::byte* data, std::size_t bytes, Stream& stream) noexcept;
}  // namespace backend

}  // namespace ref5d
