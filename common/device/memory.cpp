#include "common/device/memory.h"

#include "common/device/device.h"

namespace ref5d {

Buffer::Buffer(std::size_t bytes, MemoryCategory category, Stream& stream) : block_(std::make_shared<Block>()) {
  block_->category = category;
  block_->stream = &stream;
  if (bytes == 0) return;
  device().memory().add(category, bytes);
  try {
    block_->data = backend::allocate(bytes, stream);
  } catch (...) {
    device().memory().remove(category, bytes);
    throw;
  }
  block_->bytes = bytes;
}

void Buffer::set_category(MemoryCategory category) const {
  if (!block_ || block_->category == category) return;
  device().memory().remove(block_->category, block_->bytes);
  block_->category = category;
  device().memory().add(category, block_->bytes);
}

Buffer::Block::~Block() {
  if (bytes == 0) return;
  device().memory().remove(category, bytes);
  backend::release(data, bytes, *stream);
}

}  // namespace ref5d
